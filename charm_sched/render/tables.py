"""Tables that fit: columns are left out from the right, and no number is ever cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from charm_sched.planners.external import short_name

GAP = 2
CHOSEN = "*"
"""Stands before the rows that were chosen."""


def fitting(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    left: Iterable[int] = (0,),
    name: int = 0,
    least: int = 24,
) -> Table:
    """Give a table that takes at most ``width`` columns of the terminal.

    Args:
        head: Names of the columns, the most important ones first.
        rows: Their cells; rows that begin with `CHOSEN` are bold, rows of one cell are captions.
        width: Columns of the terminal.
        left: Columns that are set to the left.
        name: The column of names: it stays, and is shortened before its beginning.
        least: How long names may be before columns are left out for them.
    """
    widths = [
        max(cell_len(cell) for cell in (title, *(row[at] for row in rows if len(row) > 1)))
        for at, title in enumerate(head)
    ]
    widths[name] = max(min(widths[name], least), cell_len(head[name]))
    count = len(head)
    while count > max(2, name + 1) and sum(widths[:count]) + GAP * (count - 1) > width:
        count -= 1
    others = sum(widths[:count]) - widths[name] + GAP * (count - 1)
    longest = max(8, width - others)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    for at, title in enumerate(head[:count]):
        table.add_column(Text(title), justify="left" if at in left else "right", no_wrap=True)
    for row in rows:
        cells = [Text(_shortened(c, longest) if at == name else c) for at, c in enumerate(row)]
        style = "bold" if row[0].startswith(CHOSEN) else "dim" if len(row) == 1 else ""
        table.add_row(*cells[:count], style=style)
    return table


def _shortened(text: str, longest: int) -> str:
    """Leave out the middle: the mark at the beginning and the function at the end stay."""
    if cell_len(text) <= longest:
        return text
    return f"{text[:3]}...{text[6 - longest :]}"


def names_of(strategies: Iterable[str]) -> dict[str, str]:
    """Name strategies as ``file.py:function``, with folders just where others are named alike.

    >>> list(names_of(["ring", "a/mine.py:f", "b/mine.py:f"]).values())
    ['ring', 'a/mine.py:f', 'b/mine.py:f']
    """
    every = list(dict.fromkeys(strategies))
    found = {strategy: short_name(strategy) for strategy in every}
    for depth in range(2, 1 + max((s.count("/") + 1 for s in every), default=0)):
        alike = Counter(found.values())
        for strategy in every:
            if alike[found[strategy]] > 1:
                found[strategy] = "/".join(strategy.split("/")[-depth:])
    return found
