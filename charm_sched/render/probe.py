"""What a probe found, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from charm_sched.probing.report import (
    LATENCY_TOLERANCE,
    differences,
    rate,
    ratio,
    undetermined,
    unexplained,
)
from charm_sched.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from charm_sched.probing.numbers import ClassFit, Number
    from charm_sched.probing.result import Found

BLOCK = 10  # columns of the matrix beside each other
UNITS = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))


def show(console: Console, found: Found) -> None:
    """Print what was found: the matrix, the links, the differences, what stays open."""
    console.print(Text(f"{found.topology.name}: {found.how}"))
    for note in found.notes:
        console.print(Text(f"  {note}", style="dim"))
    console.print()
    for part in matrix(found):
        console.print(part)
    console.print(links(found))
    console.print()
    named = [each.text for each in differences(found)]
    limits = f"{found.tolerance:.0%} (latencies: {LATENCY_TOLERANCE:.0%})"
    _list(console, f"Differences of more than {limits}", named)
    if not named:
        console.print("The machine is as its file says, as far as it was seen.\n")
    _list(console, "Not explained", unexplained(found))
    _list(console, "Left open", undetermined(found))


def _list(console: Console, title: str, sentences: Sequence[str]) -> None:
    if not sentences:
        return
    console.print(Text(title, style="bold"))
    for sentence in sentences:
        grid = Table.grid(padding=(0, 1))
        grid.add_row("  *", Text(sentence))
        console.print(grid)
    console.print()


def matrix(found: Found) -> Iterator[Table | Text]:
    """Yield the rates of pairs alone: senders down, receivers across."""
    rates = found.matrix
    if not rates:
        return
    if len(rates) < len(found.devices) * (len(found.devices) - 1):
        return  # a part of it; the JSON document has the entries
    unit, name = next(u for u in UNITS if u[0] <= max(rates.values()) or u[1] == "B/s")
    yield Text(f"One flow from each rank (down) to each (across), {name}", style="bold")
    ranks = range(len(found.devices))
    for first in range(0, len(ranks), BLOCK):
        table = _table(("rank", True), *((str(b), False) for b in ranks[first : first + BLOCK]))
        for a in ranks:
            row = [
                f"{rates[a, b] / unit:.3g}" if a != b else "-" for b in ranks[first : first + BLOCK]
            ]
            table.add_row(str(a), *row)
        yield table
        yield Text()


def links(found: Found) -> Table:
    """Give the numbers of each class of links, file beside measured."""
    table = _table(
        ("links", True), ("number", True), ("file", False), ("measured", False), ("", False)
    )
    for fit in found.fit.classes:
        latency = found.latencies.get(fit.link_class)
        rows = [
            ("bandwidth", *_cells(fit.bandwidth)),
            *([("one flow", *_cells(fit.flow_cap))] if _has_cap(fit) else []),
        ]
        if not fit.is_port:
            file = fit.link_class[2]
            rows.append((
                "latency", format_seconds(file, digits=3),
                "not modelled" if latency is None else format_seconds(latency, digits=3),
                "" if latency is None else ratio(latency, file),
            ))  # fmt: skip
            duplex = ("full", "half")
            seen = duplex[fit.shared] if fit.shared_status == "measured" else "not seen"
            rows.append(("duplex", duplex[fit.link_class[4]], seen, ""))
        for number, row in enumerate(rows):
            table.add_row("" if number else fit.name, *row)
    return table


def _has_cap(fit: ClassFit) -> bool:
    return fit.flow_cap.file is not None or fit.flow_cap.value is not None


def _cells(number: Number) -> tuple[str, str, str]:
    file = "none" if number.file is None else rate(number.file)
    if number.status in ("unseen", "at least") or number.value is None:
        return file, f">= {rate(number.seen)}", ""
    return file, rate(number.value), "" if number.file is None else ratio(number.value, number.file)


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name, left in columns:
        table.add_column(Text(name), justify="left" if left else "right", no_wrap=True)
    return table
