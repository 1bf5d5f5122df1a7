"""A plan executed token by token, op after op, with slots as real memory.

Written without a look at `hazards` or `verifier`: it knows just what the docstring of
`charm_sched.plans.plan` says. Slow and plain on purpose.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from charm_sched.plans.items import HOME, Item
from charm_sched.plans.ops import Attend, Merge, Transfer
from charm_sched.plans.plan import Plan

COPIED = ("q", "kv", "g")
Triple = tuple[int, int, int]
Key = tuple[str, int, tuple[tuple[int, int], ...], tuple[int, int]]


class WrongPlan(Exception):  # noqa: N818  (it is what is wrong, not what failed)
    """The plan does not compute attention."""


@dataclass
class Rank:
    """What one rank holds: items in slots, and partial results with where they live."""

    rows: set[int]
    slots: dict[int, object] = field(default_factory=dict)
    sums: dict[Key, Counter[Triple]] = field(default_factory=dict)
    home: dict[Key, int] = field(default_factory=dict)


def run(plan: Plan) -> None:
    """Execute a plan.

    Raises:
        WrongPlan: It reads what is not there, or the result is not exactly attention.
    """
    ranks = [
        Rank({t for first, last in shard for t in range(first, last)})
        for shard in plan.partition.shards
    ]
    for rank, item, slot in zip(plan.saved.rank, plan.saved.item, plan.saved.slot, strict=True):
        if plan.direction == "backward":
            ranks[rank].slots[int(slot)] = plan.items[item]
    for op in plan.ops():
        match op:
            case Transfer():
                _transfer(plan, ranks, op)
            case Attend():
                _attend(plan, ranks, op)
            case Merge():
                _merge(plan, ranks, op)
    _check_result(plan, ranks)


def _tokens(item: Item) -> set[int]:
    return {t for first, last in item.rows for t in range(first, last)}


def _query_heads(plan: Plan, item: Item) -> range:
    share = plan.workload.heads_per_kv if item.kind in ("kv", "dkv") else 1
    return range(item.heads[0] * share, item.heads[1] * share)


def _find(plan: Plan, rank: Rank, item: Item) -> None:
    if _tokens(item) <= rank.rows:
        return
    for content in rank.slots.values():
        if (
            isinstance(content, Item)
            and content.kind == item.kind
            and _tokens(item) <= _tokens(content)
            and set(_query_heads(plan, item)) <= set(_query_heads(plan, content))
        ):
            return
    raise WrongPlan(f"{item} is not there")


def _key(plan: Plan, item: Item, kind: str, part: int) -> Key:
    heads = _query_heads(plan, item)
    return kind, part, item.rows, (heads.start, heads.stop)


def _take_slot(rank: Rank, slot: int) -> None:
    if any(where == slot for where in rank.home.values()):
        raise WrongPlan(f"slot {slot} holds a partial result")
    rank.slots.pop(slot, None)


def _contribute(rank: Rank, key: Key, slot: int, amount: Counter[Triple]) -> None:
    kind, part, rows, _ = key
    owner = {t for first, last in rows for t in range(first, last)} <= rank.rows
    for other in rank.sums:
        if other != key and other[:2] == (kind, part) and _overlap(other, key):
            raise WrongPlan("partial results overlap")
    if key not in rank.sums:
        rank.sums[key] = Counter()
        if owner and part == 0:
            rank.home[key] = HOME
        elif slot == HOME:
            raise WrongPlan("no home")
        else:
            _take_slot(rank, slot)
            rank.home[key] = slot
    if slot not in (HOME, rank.home[key]):
        _take_slot(rank, slot)
    rank.sums[key] += amount


def _overlap(one: Key, other: Key) -> bool:
    tokens = [{t for first, last in key[2] for t in range(first, last)} for key in (one, other)]
    heads = [set(range(*key[3])) for key in (one, other)]
    return bool(tokens[0] & tokens[1]) and bool(heads[0] & heads[1])


def _remove(rank: Rank, key: Key) -> Counter[Triple]:
    if key not in rank.sums:
        raise WrongPlan("nothing to move")
    del rank.home[key]
    return rank.sums.pop(key)


def _transfer(plan: Plan, ranks: list[Rank], op: Transfer) -> None:
    source, destination = ranks[op.src], ranks[op.dst]
    moved = []
    for item, slot in op.items:
        if item.kind in COPIED:
            _find(plan, source, item)
            moved.append((item, slot, Counter[Triple]()))
        else:
            moved.append((item, slot, _remove(source, _key(plan, item, item.kind, item.part))))
    for item, slot, amount in moved:
        if item.kind not in COPIED:
            _contribute(destination, _key(plan, item, item.kind, item.part), slot, amount)
            continue
        if slot == HOME:
            raise WrongPlan("copy without a slot")
        _take_slot(destination, slot)
        destination.slots[slot] = item


def _attend(plan: Plan, ranks: list[Rank], op: Attend) -> None:
    rank = ranks[op.rank]
    for item, _ in op.queries:
        _find(plan, rank, item)
        if plan.direction == "backward":
            _find(plan, rank, Item("g", item.rows, item.heads))
    for item, _ in op.keys:
        _find(plan, rank, item)
    done: dict[int, Counter[Triple]] = {}
    operands = [*op.queries, *op.keys]
    for number in range(len(operands)):
        done[number] = Counter()
    for i, (query, _) in enumerate(op.queries):
        for j, (key, _) in enumerate(op.keys):
            for triple in _triples(plan, query, key):
                done[i][triple] += 1
                done[len(op.queries) + j][triple] += 1
    lead = "dq" if plan.direction == "backward" else "o"
    for i, (item, slot) in enumerate(op.queries):
        _contribute(rank, _key(plan, item, lead, op.part), slot, done[i])
    if plan.direction == "backward":
        for j, (item, slot) in enumerate(op.keys):
            amount = done[len(op.queries) + j]
            _contribute(rank, _key(plan, item, "dkv", op.part), slot, amount)


def _triples(plan: Plan, query: Item, key: Item) -> list[Triple]:
    heads = set(_query_heads(plan, query)) & set(_query_heads(plan, key))
    return [
        (i, k, h)
        for i in sorted(_tokens(query))
        for k in sorted(_tokens(key))
        for h in sorted(heads)
        if visible(plan, i, k)
    ]


def visible(plan: Plan, query: int, key: int) -> bool:
    """Say whether the mask lets a query row see a key."""
    for segment in plan.workload.mask_rule.segments(plan.workload.seq_len):
        if segment.first <= query < segment.last:
            return segment.lower(query) <= key < segment.upper(query)
    return False


def _merge(plan: Plan, ranks: list[Rank], op: Merge) -> None:
    rank = ranks[op.rank]
    output, slot = op.output
    key = _key(plan, output, output.kind, output.part)
    amount: Counter[Triple] = Counter()
    for item, _ in op.inputs:
        source = _key(plan, item, item.kind, item.part)
        if source == key or (source[0], source[2:]) != (key[0], key[2:]):
            raise WrongPlan("merge of unlike things")
        amount += _remove(rank, source)
    _contribute(rank, key, slot, amount)


def _check_result(plan: Plan, ranks: list[Rank]) -> None:
    size = plan.workload.seq_len
    wanted = Counter(
        (i, k, h)
        for i in range(size)
        for k in range(size)
        for h in range(plan.workload.heads)
        if visible(plan, i, k)
    )
    kinds = ("o",) if plan.direction == "forward" else ("dq", "dkv")
    found: dict[str, Counter[Triple]] = {kind: Counter() for kind in kinds}
    for rank in ranks:
        for (kind, part, rows, _), amount in rank.sums.items():
            tokens = {t for first, last in rows for t in range(first, last)}
            if part or not tokens <= rank.rows:
                raise WrongPlan(f"{kind} of {rows} is left away from home")
            found[kind] += amount
    for kind, amount in found.items():
        if amount != wanted:
            raise WrongPlan(f"{kind} is not exactly attention")


def finals(plan: Plan) -> list[bool]:
    """Say of each item of each transfer in turn whether it is final.

    Token by token and head by head: all of it comes to its owner, is the only contribution there,
    and the owner attends to none of it.
    """
    owner = {
        token: rank
        for rank, shard in enumerate(plan.partition.shards)
        for first, last in shard
        for token in range(first, last)
    }
    came: Counter[tuple[str, int, int]] = Counter()
    attended: set[tuple[str, int, int]] = set()

    def at_home(kind: str, rank: int, item: Item) -> list[tuple[str, int, int]]:
        owned = sorted(token for token in _tokens(item) if owner[token] == rank)
        return [(kind, token, head) for token in owned for head in _query_heads(plan, item)]

    lead = "dq" if plan.direction == "backward" else "o"
    for op in plan.ops():
        match op:
            case Transfer():
                arrived = [item for item, _ in op.items if item.kind not in COPIED]
                for item in arrived:
                    came.update(at_home(item.kind, op.dst, item) if not item.part else [])
            case Attend():
                done = [(lead, item) for item, _ in op.queries]
                done += [("dkv", item) for item, _ in op.keys if plan.direction == "backward"]
                for kind, item in done:
                    attended.update(at_home(kind, op.rank, item))
            case Merge():
                item, _ = op.output
                came.update(at_home(item.kind, op.rank, item) if not item.part else [])
    found = []
    for op in plan.ops():
        for item, _ in op.items if isinstance(op, Transfer) else ():
            cells = at_home(item.kind, op.dst, item)
            whole = len(cells) == len(_tokens(item)) * len(_query_heads(plan, item))
            partial = item.kind not in COPIED and not item.part
            alone = all(came[cell] == 1 and cell not in attended for cell in cells)
            found.append(partial and whole and alone)
    return found
