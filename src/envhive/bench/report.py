"""The report of one run or several: a page that needs nothing beside it, and the plots as files."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from envhive.bench.plots import Plot, draw_all
from envhive.bench.records import Run
from envhive.bench.tables import Table, tables_of, together
from envhive.errors import ConfigurationError

REPORT_FILE: Final = "report.html"
_LONG: Final = 24
"""A text longer than this may be broken into lines; figures may not."""

_STYLE: Final = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --faint: #555; --line: #e3e3e3; --soft: #f3f3f3;
  --note: #fff6dd; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #16181b; --faint: #aaa; --line: #33373c;
  --soft: #24272b; --note: #3a3115; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2rem; }
@media (max-width: 700px) { body { margin: 1rem .7rem; } }
h1, h2, h3, p, figure, .note { max-width: 1100px; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .3rem .55rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { border-bottom-color: #888; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child, td.text { text-align: left; } td.text { white-space: normal; min-width: 14rem; }
.wide { overflow-x: auto; } .note { background: var(--note); padding: .5rem .8rem; border-left: 3px solid #e69f00; }
figure { margin: .8rem 0; overflow-x: auto; } img { width: 1040px; min-width: 720px; max-width: 100%; height: auto; }
code { background: var(--soft); padding: .1rem .3rem; overflow-wrap: anywhere; } .facts { color: var(--faint); }
"""


def write_report(runs: Sequence[Run], folder: Path) -> Path:
    """Draw and write everything; returns where the page is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plots = draw_all(runs, folder)
        page = folder / REPORT_FILE
        page.write_text(render(runs, plots), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"Cannot write the report to {folder}: {error.strerror}.") from None
    return page


def render(runs: Sequence[Run], plots: Sequence[Plot]) -> str:
    """The page, pictures and all, as one text."""
    title = " · ".join(dict.fromkeys(f"{run.info.kind}: {run.info.label}" for run in runs))
    parts = [f"<h1>{escape(title)}</h1>"]
    parts += [_table(table) for table in together(runs)]
    for run in runs:
        parts += _facts(run)
        parts += [_table(table) for table in (tables_of(run) if run.results else [])]
    parts += [_picture(plot) for plot in plots]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _facts(run: Run) -> list[str]:
    info, machine = run.info, run.info.machine
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    server = "" if info.server_cores is None else f" Server's machine: {info.server_cores} cores."
    where = f"Load from {machine.cores} cores, Python {machine.python}, {machine.system}; {packages}.{server}"
    return [
        f"<h2>{escape(info.label)}</h2>",
        f'<p class="facts">{escape(info.began)}, <code>{escape(info.command)}</code><br>{escape(where)}</p>',
        *(f'<p class="facts">{escape(fact)}</p>' for fact in info.facts),
        *(f'<p class="note">{escape(note)}</p>' for note in info.notes),
    ]


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column).replace('/', '/<wbr>')}</th>" for column in table.columns)
    rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>\n" for row in table.rows)
    return f'<h3>{escape(table.title)}</h3>\n<div class="wide"><table><tr>{head}</tr>\n{rows}</table></div>'


def _cell(text: str) -> str:
    kind = ' class="text"' if len(text) > _LONG else ""
    return f"<td{kind}>{escape(text)}</td>"


def _picture(plot: Plot) -> str:
    data = base64.b64encode(plot.path.read_bytes()).decode()
    return (
        f'<h2>{escape(plot.title)}</h2>\n<figure><img alt="{escape(plot.title)}. {escape(plot.text)}" '
        f'src="data:image/png;base64,{data}"></figure>'
    )
