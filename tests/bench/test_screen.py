"""Tables on terminals of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from envhive.bench import screen
from envhive.bench.tables import Table, tables_of
from tests.bench import samples

TABLES = [table for run in samples.runs() for table in tables_of(run)]


def printed(table: Table, width: int, terminal: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    screen.show(console, table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 250])
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.title)
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_broken(table: Table, width: int) -> None:
    lines = printed(table, width)
    assert max(map(len, lines[1:])) <= width
    text = "\n".join(lines)
    for row in table.rows:
        for figure in (cell for cell in row if cell[:1].isdigit()):
            assert figure in text


def test_every_part_of_a_table_begins_with_what_tells_its_rows_apart() -> None:
    table = Table("title", ["name", "first", "second"], [["one", "1" * 12, "2" * 12], ["two", "3", "4"]])
    heads = [line.split() for line in printed(table, 26) if "name" in line]
    assert heads == [["name", "first"], ["name", "second"]]


def test_columns_without_a_value_take_no_place_where_there_is_little() -> None:
    table = Table("title", ["name", "nothing", "long"], [["one", "–", "x" * 12]])
    assert not any("nothing" in line for line in printed(table, 24))
    assert any("nothing" in line for line in printed(table, 80))


def test_a_text_longer_than_a_line_is_broken() -> None:
    table = Table("title", ["name", "evidence"], [["one", "many words " * 20]])
    assert sum("words" in line for line in printed(table, 40)) > 3


def test_what_is_read_by_programs_has_a_line_for_each_row() -> None:
    (row,) = [line for line in printed(TABLES[0], 60, terminal=False) if "server died" in line]
    assert row.split()[:4] == ["ws", "1", "s", "512"]
