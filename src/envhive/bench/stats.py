"""Percentiles and what follows from them, without numpy: the lab's figures must not need 30 MB of libraries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

SUCCESS_GOAL: Final = 0.95
"""A batch counts as borne when so many of its sessions got through."""


class Summary(msgspec.Struct, frozen=True):
    """How a number of durations, in seconds, are spread."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    largest: float = 0.0
    quantiles: list[float] = []
    """Each hundredth from the smallest to the largest, so that a finished run can be drawn again in other ways."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted values: always one that was measured, never one in between.

    Example:
        >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
        2.0
        >>> percentile([1.0, 2.0, 3.0, 4.0], 99)
        4.0
    """
    if not ordered:
        raise ValueError("nothing was measured")
    if not 0 <= share <= 100:
        raise ValueError(f"a percentile is between 0 and 100, not {share}")
    # Rounded first: 99.9 / 100 * 1000 is 999.0000000000001 in floating point, which would be the next rank.
    rank = math.ceil(round(share / 100 * len(ordered), 9))
    return ordered[max(rank, 1) - 1]


def summarise(values: Iterable[float]) -> Summary:
    """The spread of these durations; all zeros if there are none."""
    ordered = sorted(values)
    if not ordered:
        return Summary()
    return Summary(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        p999=percentile(ordered, 99.9),
        largest=ordered[-1],
        quantiles=[round(percentile(ordered, share), 7) for share in range(101)],
    )


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two in the middle; 0 if there are none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def max_batch(success: Mapping[int, Sequence[float]], goal: float = SUCCESS_GOAL) -> int:
    """The largest batch that met the goal in every repetition; 0 if none did.

    Example:
        >>> max_batch({32: [1.0, 1.0], 128: [0.97, 0.95], 512: [1.0, 0.6]})
        128
    """
    return max((batch for batch, rates in success.items() if rates and min(rates) >= goal), default=0)
