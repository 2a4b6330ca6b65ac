"""Sets whose order does not depend on the process.

Python shuffles the hashes of texts anew in each process, and so the order of sets of them. Where a library draws from
such a set, a seed would mean something else in each process.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any


class SortedSet(set[Any]):
    """A set that is gone through in order.

    Example:
        >>> list(SortedSet(["pear", "apple", "fig"]))
        ['apple', 'fig', 'pear']
        >>> list(SortedSet("hello") - set("l"))
        ['e', 'h', 'o']
    """

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(set.__iter__(self)))

    def __sub__(self, other: Any) -> SortedSet:
        return SortedSet(self.difference(other))


class SortedFrozenSet(frozenset[Any]):
    """The same, for sets that do not change."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(frozenset.__iter__(self)))


def sort_sets(module: ModuleType) -> None:
    """Have the sets that a module makes, by name, gone through in order."""
    vars(module).update(set=SortedSet, frozenset=SortedFrozenSet)
