"""What ``charm-topo import`` does: reads what other tools print, and writes a topology file."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.commands.options import argument, count, positive
from charm_sched.errors import TopologyError
from charm_sched.files import write_whole

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    from charm_sched.importers.build import Given, Imported
    from charm_sched.importers.choices import Choices

DESCRIPTION = """\
Make a topology file out of what other tools print.

Several files about one machine are put together, and what they disagree about is listed; with a
file that joins hosts (Slurm, ibnetdiscover) they become a cluster, in which HOST=FILE is about
one host and a plain FILE about all others. What no file says comes from the flags below or is
assumed, and then listed; --strict refuses instead."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``charm-topo import``."""
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a file, HOST=FILE, or - for standard input"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path,
        help="write the topology here (.yaml) instead of standard output",
    )  # fmt: skip
    parser.add_argument(
        "--format", metavar="F",
        help="format of the files (default: recognised; docs/importing.md lists them)",
    )  # fmt: skip
    parser.add_argument("--name", help="name of the topology (default: that of the output file)")
    said = add_choices(parser, "what the files may not say")
    said.add_argument(
        "--oversubscription", metavar="FACTOR", type=argument(_factor),
        help="bandwidth from below a network switch per bandwidth upwards, such as 2",
    )  # fmt: skip
    said.add_argument("--under", metavar="SWITCH", help="only the hosts below this network switch")


def add_choices(parser: ArgumentParser, title: str) -> _ArgumentGroup:
    """Add the flags for what neither files nor tools say; gives their group."""
    said = parser.add_argument_group(title)
    said.add_argument("--gpu", metavar="MODEL", help="GPU model, such as h100-sxm")
    said.add_argument(
        "--nvlink", metavar="BANDWIDTH", type=argument(_links),
        help="of one NVLink or XGMI link, one way, such as '20.6 GB/s', or none",
    )  # fmt: skip
    said.add_argument(
        "--pcie", metavar="BANDWIDTH", type=argument(_pcie),
        help="of a PCIe link, one way, such as '24 GB/s' or gen4",
    )  # fmt: skip
    said.add_argument(
        "--socket", metavar="BANDWIDTH", type=argument(_bandwidth),
        help="between two processors, one way",
    )  # fmt: skip
    said.add_argument(
        "--nic", metavar="BANDWIDTH", type=argument(_bandwidth),
        help="of one port of a network card, such as '400 Gb/s'",
    )  # fmt: skip
    said.add_argument(
        "--peer", choices=("on", "off"), help="peer access of GPUs over PCIe, or host memory"
    )
    said.add_argument(
        "--numa", metavar="GROUPS", type=argument(_groups),
        help="GPUs that share a processor, such as 0-3,4-7",
    )  # fmt: skip
    said.add_argument("--nodes", metavar="N", type=count, help="N such machines on one fabric")
    parser.add_argument("--strict", action="store_true", help="refuse instead of assuming")
    parser.add_argument(
        "--as-is", action="store_true", help="take a machine that looks broken as it is"
    )
    return said


def import_command(parser: ArgumentParser, args: Namespace) -> None:
    """Run ``charm-topo import``.

    Raises:
        TopologyError: A file cannot be imported, or the output stands there already.
    """
    from charm_sched.importers.build import import_texts

    if args.files.count("-") > 1:
        parser.error("standard input (-) can be given once")
    output: Path | None = args.output
    replaced = check_output(output, args.files) if output is not None else False
    name = output.stem if output is not None else "imported"
    given = [_given(each) for each in args.files]
    made = import_texts(given, choices_of(args), args.format, name)
    tell(made, f"read as {', '.join(made.formats)}")
    if output is None:
        sys.stdout.write(made.text)
        return
    write_whole(output, made.text.encode())
    sys.stderr.write(f"Saved {output}{' (replaced an earlier import)' if replaced else ''}\n")


def _given(text: str) -> Given:
    from charm_sched.importers.build import Given
    from charm_sched.importers.reading import read_source

    host, found, name = text.partition("=")
    if found and host and name and not os.path.exists(text):
        return Given(read_source(name), host)
    return Given(read_source(text))


def choices_of(args: Namespace) -> Choices:
    """Return what the user adds."""
    from charm_sched.importers.choices import Choices

    return Choices(
        gpu=args.gpu,
        nvlink=args.nvlink,
        pcie=args.pcie,
        socket=args.socket,
        nic=args.nic,
        peer=None if args.peer is None else args.peer == "on",
        numa=args.numa or (),
        nodes=args.nodes,
        oversubscription=getattr(args, "oversubscription", None),
        under=getattr(args, "under", None),
        name=args.name,
        strict=args.strict,
        as_is=args.as_is,
    )


def tell(made: Imported, first: str) -> None:
    """Say on stderr what was read, repaired, doubted and assumed."""
    lines = [first]
    lines += [f"note: {note}" for note in made.notes]
    lines += [f"WARNING: {doubt}" for doubt in made.doubts]
    lines += [f"assumed: {sentence}" for sentence in made.assumptions]
    sys.stderr.write("".join(f"{line}\n" for line in lines))


def check_output(path: Path, files: list[str], mark: str = "written by charm-topo import") -> bool:
    """Check, before the work, that the output can be written; says whether it replaces an import.

    Raises:
        TopologyError: An unknown suffix, no such folder, or another file stands there.
    """
    from charm_sched.importers.writing import refuse_foreign

    if path.suffix not in (".yaml", ".yml"):
        raise TopologyError(f"{path}: expected a name that ends in .yaml or .yml")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise TopologyError(f"{path}: expected a folder that can be written to: {path.parent}")
    if not path.exists():
        return False
    if not path.is_file() or not os.access(path, os.W_OK):
        raise TopologyError(f"{path}: expected a file that can be written")
    if any(Path(each).exists() and path.samefile(each) for each in files if each != "-"):
        raise TopologyError(f"{path}: is one of the files to import; choose another name with -o")
    with path.open("rb") as file:
        refuse_foreign(file.read(4096), str(path), mark)
    return True


def _above_zero(value: float, text: str) -> float:
    if not value > 0:
        raise ArgumentTypeError(f'expected a number above zero, found "{text}"')
    return value


def _bandwidth(text: str) -> float:
    from charm_sched.units import parse_bandwidth

    return _above_zero(parse_bandwidth(text), text)


def _links(text: str) -> float:
    return 0.0 if text == "none" else _bandwidth(text)


def _pcie(text: str) -> float:
    generation = re.fullmatch(r"gen([1-6])", text.lower())
    if generation:
        from charm_sched.importers.pcie import x16

        return x16(int(generation[1]))
    return _bandwidth(text)


def _factor(text: str) -> float:
    value = positive(text, "factor such as 2")
    if not 1 <= value <= 1000:
        raise ArgumentTypeError(f'expected a factor from 1 to 1000, found "{text}"')
    return value


def _groups(text: str) -> tuple[tuple[int, ...], ...]:
    """Read "0-3,4-7" as two groups of four; "0+2,1+3" names single GPUs."""
    groups: list[tuple[int, ...]] = []
    for part in text.split(","):
        if not re.fullmatch(r"\d{1,4}(-\d{1,4})?(\+\d{1,4}(-\d{1,4})?)*", part, re.ASCII):
            raise ArgumentTypeError(f'expected groups such as 0-3,4-7 or 0+2,1+3, found "{text}"')
        numbers: list[int] = []
        for piece in part.split("+"):
            first, _, last = piece.partition("-")
            numbers += range(int(first), int(last or first) + 1)
        groups.append(tuple(numbers))
    return tuple(groups)
