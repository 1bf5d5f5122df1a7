"""Plans in files: canonical JSON when small, ``.npz`` (no pickle) when large.

A file holds one plan, or a schedule of two, with workload, partition and topology. In JSON every
operation is one line of text (`charm_sched.plans.ops`), so a plan can be read, compared and even
edited; an edit that leaves it no longer exactly attention is refused by the op it breaks, any other
edit by the digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from charm_sched.errors import CharmSchedError, PlanError, PlanFileError
from charm_sched.files import write_whole
from charm_sched.partition import Partition
from charm_sched.plans.items import ItemInterner, ItemTable, parse_item
from charm_sched.plans.ops import Attend, Merge, Op, Operand, Transfer, parse_op
from charm_sched.plans.plan import (
    ATTEND,
    MERGE,
    TRANSFER,
    Columns,
    Plan,
    Residents,
    Schedule,
    whole,
)  # fmt: skip
from charm_sched.plans.symmetry import Symmetry
from charm_sched.workload import Workload

if TYPE_CHECKING:
    import os

Value = TypeVar("Value")

SCHEMA = "charm-sched/plan"
VERSION = 1
_BROKEN_ZIP = (  # what reading a damaged archive raises
    zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, KeyError,
    struct.error, MemoryError,
)  # fmt: skip
MOST_BYTES = {".json": 2**27, ".npz": 2**32}  # that a file may hold, unpacked
LARGEST_JSON = 20_000  # operations; more go to .npz unless the name says .json


def plan_suffix(stored: Plan | Schedule) -> str:
    """Give the file suffix that suits a plan's size: ``.plan.json`` or ``.plan.npz``."""
    return ".plan.json" if sum(map(len, _plans(stored))) <= LARGEST_JSON else ".plan.npz"


def save_plan(stored: Plan | Schedule, path: str | os.PathLike[str]) -> Path:
    """Write a plan or schedule; the suffix decides the form (``.json`` or ``.npz``).

    Raises:
        PlanFileError: The suffix is neither, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix not in (".json", ".npz"):
        raise PlanFileError(f"{target}: expected a name that ends in .json or .npz")
    content = _json_bytes(_plans(stored)) if target.suffix == ".json" else to_bytes(stored)
    if target.suffix == ".json" and len(content) > MOST_BYTES[".json"]:
        raise PlanFileError(f"{target}: this plan is too large for JSON; save it as .npz")
    try:
        write_whole(target, content)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise PlanFileError(f"{target}: cannot be written: {_cause(error)}") from error
    return target


def load_plan(path: str | os.PathLike[str]) -> Plan | Schedule:
    """Read what `save_plan` wrote, and check it against its digest.

    Raises:
        PlanFileError: The file is missing, no plan of this version, or was changed; the message
            names the op or field.
    """
    source = Path(path)
    try:
        if source.is_char_device() or source.is_block_device():
            raise PlanFileError(f"{source}: expected a plan file, found a device")
        if source.stat().st_size > MOST_BYTES[".npz"]:
            raise PlanFileError(f"{source}: expected at most {MOST_BYTES['.npz']} bytes")
        content = source.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, PlanFileError):
            raise
        raise PlanFileError(f"{source}: cannot be read: {_cause(error)}") from error
    return from_bytes(content, str(source))


def _cause(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def to_bytes(stored: Plan | Schedule) -> bytes:
    """Give a plan or schedule as the content of an ``.npz`` file, to be sent to other processes."""
    return _npz_bytes(_plans(stored))


def from_bytes(content: bytes, source: str = "plan") -> Plan | Schedule:
    """Read the content of a plan file; ``source`` begins messages.

    Raises:
        PlanFileError: See `load_plan`.
    """
    try:
        header, arrays = _parse(content)
        plans = [_read_plan(header, number, arrays) for number in range(len(header["plans"]))]
        _check_digests(plans, header)
        return plans[0] if len(plans) == 1 else Schedule(forward=plans[0], backward=plans[1])
    except PlanFileError as error:
        raise PlanFileError(f"{source}: {error}") from error
    except CharmSchedError as error:
        raise PlanFileError(f"{source}: the plan was changed or is broken: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise PlanFileError(f"{source}: not a plan file: {_explain(error)}") from error


def _plans(stored: Plan | Schedule) -> tuple[Plan, ...]:
    return stored.plans if isinstance(stored, Schedule) else (stored,)


def _explain(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    return str(error) or type(error).__name__


def _header(plans: Sequence[Plan]) -> dict[str, Any]:
    first = plans[0]
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "workload": first.workload.to_document(),
        "partition": {"kind": first.partition.kind, "shards": first.partition.shards},
        "devices": first.devices,
        "topology": first.topology.to_document() if first.topology else None,
        "digest": _file_digest([plan.digest for plan in plans]),
        "plans": [
            {
                "direction": plan.direction,
                "strategy": plan.strategy,
                "params": dict(plan.params),
                "streams": plan.streams,
                "digest": plan.digest,
                "symmetry": plan.symmetry.to_document() if plan.symmetry else None,
            }
            for plan in plans
        ],
    }


def _file_digest(digests: Sequence[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _json_bytes(plans: Sequence[Plan]) -> bytes:
    document = _header(plans)
    for plan, entry in zip(plans, document["plans"], strict=True):
        saved = zip(plan.saved.rank, plan.saved.item, plan.saved.slot, strict=True)
        entry["saved"] = [f"{rank}: {plan.items[item]}@{slot}" for rank, item, slot in saved]
        entry["items"] = [str(plan.items[i]) for i in range(len(plan.items))]
        entry["ops"] = [str(op) for op in plan.ops()]
    return (json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _npz_bytes(plans: Sequence[Plan]) -> bytes:
    import numpy as np

    header = json.dumps(_header(plans), sort_keys=True, allow_nan=False)
    arrays = {"header": np.frombuffer(header.encode(), np.uint8)}
    for number, plan in enumerate(plans):
        for group, table in _tables(plan).items():
            for name in table.__dataclass_fields__:
                arrays[f"{number}.{group}.{name}"] = getattr(table, name)
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    return content.getvalue()


def _tables(plan: Plan) -> dict[str, Any]:
    return {"columns": plan.columns, "items": plan.items, "saved": plan.saved}


def _parse(content: bytes) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Split a file into its header and (for ``.npz``) its arrays."""
    import numpy as np

    arrays: dict[str, Any] = {}
    if content[:2] == b"PK":
        try:
            _check_unpacked(content)
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        except _BROKEN_ZIP as error:
            raise PlanFileError(f"not a plan file: {error}") from error
        content = arrays["header"].tobytes()
    if len(content) > MOST_BYTES[".json"]:
        raise PlanFileError(f"expected at most {MOST_BYTES['.json']} bytes of JSON, found more")
    try:
        header = json.loads(content)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise PlanFileError(f"not a plan file: {error}") from error
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise PlanFileError(f'not a plan file: expected "schema": "{SCHEMA}"')
    if header.get("version") != VERSION or not isinstance(header["version"], int):
        raise PlanFileError(
            f"version: expected {VERSION}, found {header.get('version')!r}; "
            "plan again with this version of charm-sched"
        )
    if not 1 <= len(header["plans"]) <= 2:
        raise PlanFileError(f"plans: expected one or two, found {len(header['plans'])}")
    return header, arrays


def _check_unpacked(content: bytes) -> None:
    """Refuse an archive that unpacks to more than any plan needs, before it is unpacked."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > MOST_BYTES[".npz"]:
        raise PlanFileError(f"expected at most {MOST_BYTES['.npz']} bytes, unpacked {size}")


def _read_plan(header: dict[str, Any], number: int, arrays: Mapping[str, Any]) -> Plan:
    from charm_sched.plans.builder import freeze
    from charm_sched.topology.graph import Topology

    entry = header["plans"][number]
    workload = Workload.from_document(header["workload"])
    shards = header["partition"]["shards"]
    topology = header["topology"]
    streams = tuple(entry["streams"])
    symmetry = entry.get("symmetry")
    if arrays:
        columns = Columns(**_group(arrays, f"{number}.columns.", Columns))
        items = ItemTable(**_group(arrays, f"{number}.items.", ItemTable))
        saved = Residents(**_group(arrays, f"{number}.saved.", Residents))
    else:
        intern = ItemInterner()
        for text in entry["items"]:
            intern(_canonical(parse_item, text))
        ops = [_canonical(parse_op, text) for text in entry["ops"]]
        columns = columns_of(ops, streams, intern)
        saved = _residents(entry["saved"], intern)
        items = intern.table()
    return Plan(
        direction=entry["direction"],
        strategy=entry["strategy"],
        params=dict(entry["params"]),
        workload=workload,
        partition=Partition(
            header["partition"]["kind"],
            workload.seq_len,
            tuple(tuple((_whole(a), _whole(b)) for a, b in shard) for shard in shards),
        ),
        devices=tuple(header["devices"]),
        topology=Topology.from_document(topology, where="topology") if topology else None,
        streams=streams,
        items=freeze(items),
        columns=freeze(columns),
        saved=freeze(saved),
        symmetry=Symmetry(shape=tuple(symmetry["shape"]), axes=tuple(symmetry["axes"]))
        if symmetry
        else None,
    )


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise PlanFileError(f"partition: expected whole numbers, found {value!r}")
    return value


def _canonical(parse: Callable[[str], Value], text: str) -> Value:
    """Parse a text form that is written in just the way that this program writes it."""
    value = parse(text)
    if str(value) != text:
        raise PlanError(f"expected {str(value)!r}, found {text!r}")
    return value


def _group(arrays: Mapping[str, Any], prefix: str, table: type) -> dict[str, Any]:
    """Take the columns of one table out of a file's arrays."""
    names: Mapping[str, Any] = table.__dataclass_fields__  # type: ignore[attr-defined]
    return {name: arrays[prefix + name] for name in names}


def columns_of(ops: Sequence[Op], streams: tuple[str, ...], intern: ItemInterner) -> Columns:
    """Turn readable operations into columns."""
    import numpy as np

    rows: list[tuple[int, int, int, int, int, int, int]] = []
    operands: list[Operand] = []
    ends = [0]
    for number, op in enumerate(ops):
        if op.stream not in streams:
            raise PlanError(f"op {number}: expected a stream of {streams}, found {op.stream!r}")
        stream = streams.index(op.stream)
        match op:
            case Transfer():
                lead = len(op.items)
                rows.append((TRANSFER, op.src, op.dst, op.level, stream, 0, lead))
                operands += op.items
            case Attend():
                rows.append((ATTEND, op.rank, -1, -1, stream, op.part, len(op.queries)))
                operands += (*op.queries, *op.keys)
            case Merge():
                rows.append((MERGE, op.rank, -1, -1, stream, 0, len(op.inputs)))
                operands += (*op.inputs, op.output)
        ends.append(len(operands))
    table = np.array(rows, np.int64).reshape(-1, 7)
    names = ("op", "rank", "peer", "level", "stream", "part", "lead")
    types: dict[str, type[np.integer[Any]]] = {
        "op": np.uint8, "stream": np.int16, "part": np.int16,
    }  # fmt: skip
    narrow = {n: whole(table[:, i], types.get(n, np.int32), n) for i, n in enumerate(names)}
    slots = np.array([slot for _, slot in operands], np.int64)
    return Columns(
        **narrow,
        ptr=np.array(ends, np.int64),
        arg=np.array([intern(item) for item, _ in operands], np.int32),
        slot=whole(slots, np.int32, "slot"),
    )


def with_ops(plan: Plan, ops: Sequence[Op]) -> Plan:
    """Give a plan with other operations and all else equal. The result is not verified.

    Raises:
        PlanError: An operation names a stream that the plan does not have.
    """
    from charm_sched.plans.builder import freeze

    intern = ItemInterner()
    for number in range(len(plan.items)):
        intern(plan.items[number])
    columns = columns_of(ops, plan.streams, intern)
    return replace(plan, columns=freeze(columns), items=freeze(intern.table()))


def _residents(lines: Sequence[str], intern: ItemInterner) -> Residents:
    import numpy as np

    entries = []
    for line in lines:
        rank, _, operand = line.partition(": ")
        item, _, slot = operand.partition("@")
        entries.append((int(rank), intern(parse_item(item)), int(slot)))
    rank_column, item_column, slot_column = np.array(entries, np.int32).reshape(-1, 3).T
    return Residents(rank=rank_column.copy(), item=item_column.copy(), slot=slot_column.copy())


def _check_digests(plans: Sequence[Plan], header: Mapping[str, Any]) -> None:
    """Compare digests; where one differs, say which op is wrong, or else that it is the digest."""
    from charm_sched.proof.verifier import verify

    entries: Sequence[Mapping[str, Any]] = header["plans"]
    for plan, entry in zip(plans, entries, strict=True):
        if plan.digest == entry["digest"]:
            continue
        verify(plan)
        raise PlanFileError(
            f"digest: the {plan.direction} plan was changed after it was written: "
            f"expected {entry['digest']}, found {plan.digest}"
        )
    if header["digest"] != _file_digest([entry["digest"] for entry in entries]):
        raise PlanFileError("digest: the file holds other plans than it was written with")
