"""A sheet as YAML: a comment above what is assumed, one line per device, switch and link."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from charm_sched.errors import TopologyError
from charm_sched.importers.naming import printable, ranges
from charm_sched.importers.sheet import Entry, Section, Sheet
from charm_sched.topology.file import parse_topology
from charm_sched.topology.graph import Topology
from charm_sched.topology.profile_document import profile_document
from charm_sched.topology.profiles import ComputeProfile
from charm_sched.topology.spec import SCHEMA, VERSION

MARKS = ("written by charm-topo import", "written by charm-topo detect")
_WIDTH = 98


def write(sheet: Sheet) -> str:
    """Return the text of a sheet, which reads back as a valid topology.

    Raises:
        TopologyError: it does not; the message says why.
    """
    text = "\n".join(_lines(sheet)) + "\n"
    check(text)
    return text


def check(text: str) -> Topology:
    """Return the topology of a text, domains found.

    Raises:
        TopologyError: no valid topology.
    """
    where = "what comes out"
    try:
        topology = parse_topology(text, where=where)
        topology.domains()
    except TopologyError as error:
        found = re.sub(rf"^{where}:?(?:\d+)?: ", "", str(error))
        raise TopologyError(f"expected a machine that can be planned on; its {found}") from error
    return topology


def _lines(sheet: Sheet) -> Iterator[str]:
    yield f"# {sheet.mark}"
    for line in sheet.heading:
        yield from _comment(line, "")
    yield f"schema: {SCHEMA}"
    yield f"version: {VERSION}"
    yield f"name: {_flow(sheet.name)}"
    if sheet.description:
        yield f"description: {_flow(sheet.description)}"
    yield ""
    yield "profiles:"
    for profile in sheet.profiles.values():
        yield from _profile(profile)
    if sheet.kinds:
        yield ""
        yield "kinds:"
    for kind, values in sheet.kinds.items():
        for key in values.get("assumed", ()):
            yield from _comment(f"assumed: {key} {values[key]}: {values['source'][key]}", "  ")
        yield f"  {kind}:"
        for key, value in values.items():
            yield f"    {key}: {_flow(value)}"
    if sheet.templates:
        yield ""
        yield "templates:"
    for name, section in sheet.templates.items():
        yield f"  {name}:"
        yield from (f"    {line}" if line else "" for line in _section(section))
    yield from _section(sheet.body)
    if sheet.assumptions:
        yield ""
        yield "assumptions:"
        for sentence in sheet.assumptions:
            yield f"  - {_flow(sentence)}"


def _profile(profile: ComputeProfile) -> Iterator[str]:
    document = profile_document(profile)
    rates = document.pop("rates", [])
    yield f"  {_flow(profile.name)}:"
    for key, value in document.items():
        yield f"    {key}: {_flow(value)}"
    if rates:
        yield "    rates:"
    for rate in rates:
        yield f"      - {_flow(rate)}"


def _section(section: Section) -> Iterator[str]:
    lists = {"parts": section.parts, "devices": section.devices, "switches": section.switches,
             "links": section.links}  # fmt: skip
    for name, entries in lists.items():
        if entries:
            yield ""
            yield f"{name}:"
        for entry in _joined(entries, "from" if name == "links" else "name"):
            if entry.fields.get("assumed"):
                yield f"  # assumed: {', '.join(entry.fields['assumed'])}"
            line = f"  - {_flow(dict(entry.fields))}"
            yield f"{line} # {printable(entry.comment)}" if entry.comment else line


def _joined(entries: Sequence[Entry], key: str) -> Iterator[Entry]:
    """Yield the entries, neighbours that differ only in a number at the end of a name as one."""

    def rest(entry: Entry) -> tuple[object, ...]:
        others = {name: value for name, value in entry.fields.items() if name != key}
        return repr(others), entry.comment, ".." in entry.fields[key]

    for _, group in itertools.groupby(entries, rest):
        alike = list(group)
        names = [entry.fields[key] for entry in alike]
        for name in names if any(".." in name for name in names) else ranges(names):
            yield Entry({**alike[0].fields, key: name}, alike[0].comment)


def _comment(text: str, indent: str) -> Iterator[str]:
    import textwrap

    for line in textwrap.wrap(printable(text), _WIDTH - len(indent)) or [""]:
        yield f"{indent}# {line}".rstrip()


def _flow(value: Any) -> str:  # noqa: ANN401  (any JSON value)
    import yaml

    text: str = yaml.dump(
        value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), default_flow_style=True,
        sort_keys=False, width=10**9, allow_unicode=True,
    )  # fmt: skip
    return text.removesuffix("\n").removesuffix("\n...").removesuffix("...").rstrip("\n")


def refuse_foreign(content: bytes, name: str, mark: str = MARKS[0]) -> bool:
    """Say whether a file that stands at the target was written here, and may be replaced.

    `mark` is what the message calls such a file.

    Raises:
        TopologyError: it was not.
    """
    if content and not any(each.encode() in content[:4096] for each in MARKS):
        raise TopologyError(
            f"{name}: stands there already and was not {mark}, so it is left alone; choose another "
            "name with -o, or remove it"
        )
    return bool(content)
