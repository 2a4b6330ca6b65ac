"""What a person sees while the lab works: bars, tables, remarks. Only this and the plots need the extra."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from envhive.bench.records import RunInfo
from envhive.bench.tables import Table
from envhive.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

Step = Callable[[str, int], None]
"""Begin the next part: what it is, and how much there is to do in it."""
Update = Callable[[int, int], None]


def need_the_extra() -> None:
    """Raise, with the one command to type, if the lab's own packages are not installed."""
    missing = [name for name in ("rich", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f'envhive bench needs {" and ".join(missing)}. Type: pip install "envhive[bench]"')


def console() -> Console:
    from rich.console import Console

    class Patient(Console):
        """Goes on where nobody reads any more (`... | head`): the report is for later."""

        def on_broken_pipe(self) -> None:
            self.quiet = True
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # or the interpreter would complain at its end

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal of plain ASCII shows ? for µ and ≥, and not a traceback
    return Patient(soft_wrap=False, highlight=False)


@contextmanager
def progress(screen: Console, total: int, unit: str) -> Iterator[tuple[Step, Update]]:
    """Two bars: the parts of the run, and the part that is under way. Where nobody looks, a line for each part."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, refresh_per_second=5) as bars:
        whole = bars.add_task(unit, total=total)
        part = bars.add_task("", total=None, visible=False)
        begun, doing = 0, ""

        def step(description: str, size: int) -> None:
            nonlocal begun
            nonlocal doing
            bars.update(whole, completed=begun)
            begun, doing = begun + 1, description
            bars.reset(part, total=size or None, description=description, visible=True)
            if not screen.is_terminal:
                print(f"{begun}/{total} {unit}: {description}", file=sys.stderr, flush=True)

        def update(done: int, failed: int) -> None:
            bars.update(part, completed=done, description=f"{doing}, {failed} failed" if failed else doing)

        yield step, update
        bars.update(whole, completed=begun)


def show(screen: Console, table: Table) -> None:
    """A table that keeps its numbers whole: where the terminal is too narrow for it, several below each other.

    Each of them begins with what tells the rows apart, and columns without a value are left out. Only a text that is
    longer than a line is broken.
    """
    from rich.text import Text

    every = list(range(len(table.columns)))
    width = _width_of(screen, table, every)
    screen.print(Text(table.title, style="bold"), soft_wrap=True)
    if not screen.is_terminal or width <= screen.width:
        wide = type(screen)(file=screen.file, width=max(width, screen.width), highlight=False)
        wide.print(_drawn(table, every))
        return
    keys = every[: table.keys]
    shown: list[int] = []
    for place in every[table.keys :]:
        if all(row[place] == "–" for row in table.rows):
            continue
        if shown and _width_of(screen, table, [*keys, *shown, place]) > screen.width:
            screen.print(_drawn(table, keys + shown))
            shown = []
        shown.append(place)
    screen.print(_drawn(table, keys + shown))


def _width_of(screen: Console, table: Table, places: list[int]) -> int:
    from rich.measure import Measurement

    unlimited = screen.options.update(width=10_000)
    return Measurement.get(screen, unlimited, _drawn(table, places)).maximum


def _drawn(table: Table, places: list[int]) -> RichTable:
    """Some of the columns, as rich draws them."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD)
    for place in places:
        texts = [row[place] for row in table.rows]
        right = all(text[:1].isdigit() or text == "–" for text in texts)
        drawn.add_column(table.columns[place], justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(row[place]) for place in places))  # as they are: a label may have brackets
    return drawn


def remarks(screen: Console, info: RunInfo) -> None:
    for text in info.facts:
        remark(screen, text)
    for text in info.notes:
        remark(screen, text, warning=True)


def remark(screen: Console, text: str, warning: bool = False) -> None:
    screen.print(text, style="yellow" if warning else None, markup=False, soft_wrap=True)
