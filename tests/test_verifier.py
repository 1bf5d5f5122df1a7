"""The verifier against brute force, on plans, on edited plans, and by name of the fault."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import brute, cases

from charm_sched.errors import CharmSchedError, PlanError
from charm_sched.plans.items import HOME, Item
from charm_sched.plans.ops import Attend, Merge, Op, Transfer
from charm_sched.plans.plan import Plan, program
from charm_sched.plans.storage import with_ops
from charm_sched.proof.verifier import verify


@given(cases.plans())
@settings(max_examples=150)
def test_planners_write_plans_that_verify_and_compute_attention(plan: Plan) -> None:
    verify(plan, plan.workload)
    brute.run(plan)


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("partition", ["contiguous", "zigzag"])
def test_one_to_sixteen_ranks(mask: str, partition: str) -> None:
    for ranks in range(1, 17):
        for seq_len in (max(1, ranks - 1), 5 * ranks + 3):
            workload = cases.small_workload(seq_len, mask)
            for strategy in ("ring", "charm"):
                for plan in cases.both_ways(strategy, ranks, workload, partition):
                    verify(plan, workload)


@pytest.mark.parametrize("params", cases.CHARM_PARAMS, ids=str)
def test_charm_on_trees_of_domains(params: dict[str, object]) -> None:
    for tree in cases.TREES:
        ranks = len(cases.leaves(tree))
        for mask in ("full", "causal"):
            workload = cases.small_workload(3 * ranks + 1, mask)
            for plan in cases.both_ways(
                "charm", ranks, workload, "zigzag", {**params, "domains": tree}
            ):
                verify(plan, workload)
                brute.run(plan)


# Edits, each a function of (ops, a random number generator) that gives other ops.


def _drop(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    at = draw(len(ops))
    return ops[:at] + ops[at + 1 :]


def _double(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    at = draw(len(ops))
    return ops[: at + 1] + ops[at:]


def _swap_rows(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    one, other = draw(len(ops)), draw(len(ops))
    ops[one], ops[other] = ops[other], ops[one]
    return ops


def _other_peer(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    at = _pick(ops, Transfer, draw)
    op = ops[at]
    assert isinstance(op, Transfer)
    ops[at] = Transfer(src=op.src, dst=draw(8), items=op.items, level=op.level, stream=op.stream)
    return ops


def _other_source(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    at = _pick(ops, Transfer, draw)
    op = ops[at]
    assert isinstance(op, Transfer)
    ops[at] = Transfer(src=draw(8), dst=op.dst, items=op.items, level=op.level, stream=op.stream)
    return ops


def _other_level(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    at = _pick(ops, Transfer, draw)
    op = ops[at]
    assert isinstance(op, Transfer)
    ops[at] = Transfer(src=op.src, dst=op.dst, items=op.items, level=draw(6), stream=op.stream)
    return ops


def _other_slot(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    at = _pick(ops, Transfer, draw)
    op = ops[at]
    assert isinstance(op, Transfer)
    items = tuple((item, draw(6) - 1) for item, _ in op.items)
    ops[at] = Transfer(src=op.src, dst=op.dst, items=items, level=op.level, stream=op.stream)
    return ops


def _other_sum_slot(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    at = _pick(ops, Attend, draw)
    op = ops[at]
    assert isinstance(op, Attend)
    keys = tuple((item, draw(6) - 1) for item, _ in op.keys)
    queries = tuple((item, draw(3) - 1) for item, _ in op.queries)
    ops[at] = Attend(rank=op.rank, queries=queries, keys=keys, stream=op.stream, part=op.part)
    return ops


def _other_part(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    at = _pick(ops, Attend, draw)
    op = ops[at]
    assert isinstance(op, Attend)
    ops[at] = Attend(
        rank=op.rank, queries=op.queries, keys=op.keys, stream=op.stream, part=1 - op.part
    )
    return ops


def _other_keys(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    at, other = _pick(ops, Attend, draw), _pick(ops, Attend, draw)
    op, source = ops[at], ops[other]
    assert isinstance(op, Attend)
    assert isinstance(source, Attend)
    ops[at] = Attend(
        rank=op.rank, queries=op.queries, keys=source.keys, stream=op.stream, part=op.part
    )
    return ops


def _other_rank(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    at = _pick(ops, Attend, draw)
    op = ops[at]
    assert isinstance(op, Attend)
    ops[at] = Attend(rank=draw(8), queries=op.queries, keys=op.keys, stream=op.stream, part=op.part)
    return ops


def _copied_where_it_must_move(ops: list[Op], draw: Callable[[int], int]) -> list[Op]:
    """Send a partial result twice: to where it goes, and to somebody else as well."""
    moves = [
        i for i, op in enumerate(ops)
        if isinstance(op, Transfer) and op.items[0][0].kind not in ("q", "kv", "g")
    ]  # fmt: skip
    assume(moves)
    at = moves[draw(len(moves))]
    op = ops[at]
    assert isinstance(op, Transfer)
    copy = Transfer(src=op.src, dst=draw(8), items=op.items, level=op.level, stream=op.stream)
    return [*ops[: at + 1], copy, *ops[at + 1 :]]


def _pick(ops: list[Op], kind: type, draw: Callable[[int], int]) -> int:
    found = [i for i, op in enumerate(ops) if isinstance(op, kind)]
    assume(found)
    return found[draw(len(found))]


EDITS = (
    _drop, _double, _swap_rows, _other_peer, _other_source, _other_level, _other_slot,
    _other_sum_slot, _other_part, _other_keys, _other_rank, _copied_where_it_must_move,
)  # fmt: skip


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__.strip("_"))
@given(cases.plans(most_ranks=4, most_tokens=9), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_no_wrong_edit_is_accepted(edit: Callable, plan: Plan, random: object) -> None:
    assume(len(plan))
    ops = edit(list(plan.ops()), lambda n: random.randrange(n))  # type: ignore[attr-defined]
    try:
        verify(with_ops(plan, ops))
    except PlanError:
        return
    brute.run(with_ops(plan, ops))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda ops: ops[:5] + ops[6:],
            r"op 9 \(attend 2.*\): reads kv\[4:8\]h0:1 on rank 2, but no",
        ),
        (
            lambda ops: ops[:-1],
            r"coverage: queries 12:16 with keys 0:4 of head 0 are never attended",
        ),
        (lambda ops: [*ops, ops[-1]], r"attended 2 times, by op \d+ \(attend.* and op \d+ \(att"),
    ],
    ids=["transfer dropped", "attend dropped", "attend doubled"],
)
def test_faults_are_named(edit: Callable, message: str) -> None:
    plan = cases.made("ring", 4, cases.small_workload(16))
    with pytest.raises(PlanError) as caught:
        verify(with_ops(plan, edit(list(plan.ops()))))
    assert re.search(message, str(caught.value)), caught.value


def _two_ranks(*ops: Op, direction: str = "forward") -> Plan:
    """Give a plan of two ranks, four tokens each, with these ops."""
    plan = cases.made("ring", 2, cases.small_workload(8), direction=direction)
    streams = tuple(dict.fromkeys([*plan.streams, *(op.stream for op in ops)]))
    from dataclasses import replace

    return with_ops(replace(plan, streams=streams), list(ops))


Q = [Item("q", ((0, 4),), (0, 2)), Item("q", ((4, 8),), (0, 2))]
KV = [Item("kv", ((0, 4),), (0, 1)), Item("kv", ((4, 8),), (0, 1))]


def _send(owner: int, slot: int, level: int = 0, stream: str = "ring") -> Transfer:
    return Transfer(
        src=owner, dst=1 - owner, items=((KV[owner], slot),), level=level, stream=stream
    )


def _compute(rank: int, *owners: int, part: int = 0, slot: int = HOME) -> Attend:
    keys = tuple((KV[owner], HOME) for owner in owners)
    return Attend(rank=rank, queries=((Q[rank], slot),), keys=keys, stream="compute", part=part)


def test_a_slot_used_too_early_is_named_with_what_it_holds() -> None:
    early = _two_ranks(
        _send(0, 0), _send(1, 0),
        Transfer(src=0, dst=1, items=((Q[0], 0),), level=1, stream="ring"),
        _compute(0, 0, 1), _compute(1, 0, 1),
    )  # fmt: skip
    with pytest.raises(PlanError) as caught:
        verify(early)
    assert re.search(
        r"op 2 \(transfer 0 -> 1: q.*\): puts q\[0:4\]h0:2 into slot 0 of rank 1, which still "
        r"holds kv\[0:4\]h0:1 for op 4 \(attend 1",
        str(caught.value),
    )


def test_a_partial_result_left_away_is_named_with_its_owner() -> None:
    # Rank 0 computes for rank 1's queries and keeps the result.
    lost = _two_ranks(
        _send(0, 0), _send(1, 0),
        Transfer(src=1, dst=0, items=((Q[1], 1),), level=1, stream="ring"),
        _compute(0, 0, 1),
        Attend(rank=0, queries=((Q[1], 2),), keys=((KV[0], HOME), (KV[1], HOME)), stream="compute"),
    )  # fmt: skip
    with pytest.raises(PlanError, match=r"o\[4:8\]h0:2 stays on rank 0, but its owner is rank 1"):
        verify(lost)


def test_a_part_that_nothing_merges_is_named() -> None:
    parts = (_compute(0, 0), _compute(0, 1, part=1, slot=3), _compute(1, 0, 1))
    with pytest.raises(PlanError, match=r"o\[0:4\]h0:2.1 stays on rank 0, but part 1 is merged by"):
        verify(_two_ranks(_send(0, 0), _send(1, 0), *parts))
    o = [Item("o", Q[0].rows, Q[0].heads, part) for part in (0, 1)]
    merge = Merge(rank=0, inputs=((o[1], HOME),), output=(o[0], HOME), stream="compute")
    verify(_two_ranks(_send(0, 0), _send(1, 0), *parts, merge))
    with pytest.raises(PlanError, match=r"moved or merged away before"):
        verify(_two_ranks(_send(0, 0), _send(1, 0), *parts, merge, merge))


def test_a_partial_result_without_a_home_is_refused() -> None:
    homeless = _compute(0, 1, part=1)
    with pytest.raises(
        PlanError, match=r"adds o\[0:4\]h0:2.1 at home on rank 0, which has no home"
    ):
        verify(_two_ranks(_send(0, 0), _send(1, 0), homeless, _compute(0, 0), _compute(1, 0, 1)))


def test_overlapping_partial_results_are_refused() -> None:
    half = Item("q", ((0, 2),), (0, 2))
    rest = Item("q", ((2, 4),), (0, 2))
    keys = ((KV[1], HOME),)
    split = (
        Attend(rank=0, queries=((half, HOME), (rest, HOME)), keys=keys, stream="compute"),
        _compute(0, 0), _compute(1, 0, 1),
    )  # fmt: skip
    with pytest.raises(
        PlanError, match=r"overlaps o\[0:[24]\].* on rank 0; partial results of one"
    ):
        verify(_two_ranks(_send(0, 0), _send(1, 0), *split))


def test_a_sub_piece_can_be_read_out_of_a_whole() -> None:
    quarter = Item("kv", ((4, 6),), (0, 1))
    rest = Item("kv", ((6, 8),), (0, 1))
    keys = ((quarter, HOME), (rest, HOME), (KV[0], HOME))
    pieces = Attend(rank=0, queries=((Q[0], HOME),), keys=keys, stream="compute")
    plan = _two_ranks(_send(0, 0), _send(1, 0), pieces, _compute(1, 0, 1))
    verify(plan)
    brute.run(plan)
    overwritten = _two_ranks(
        _send(0, 0), _send(1, 0),
        Transfer(src=1, dst=0, items=((Q[1], 0),), level=1, stream="ring"),
        pieces, _compute(1, 0, 1),
    )  # fmt: skip
    with pytest.raises(PlanError, match=r"puts q\[4:8\]h0:2 into slot 0 of rank 0"):
        verify(overwritten)


def test_waiting_in_a_circle_is_found_and_named() -> None:
    # All hops of a ring in one level: each batch would have to bring what it sends.
    plan = cases.made("ring", 3, cases.small_workload(12))
    ops = [
        Transfer(src=op.src, dst=op.dst, items=op.items, level=0, stream=op.stream)
        if isinstance(op, Transfer)
        else op
        for op in plan.ops()
    ]
    with pytest.raises(PlanError) as caught:
        verify(with_ops(plan, ops))
    assert re.search(
        r"deadlock: these ops wait for each other: op \d+ \(transfer .*\); op \d+ \(transfer",
        str(caught.value),
    )


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("op", 7, "expected a transfer, an attend or a merge"),
        ("rank", 9, "expected ranks below 4"),
        ("rank", -1, "expected ranks below 4"),
        ("peer", 9, "expected another rank below 4 as its destination"),
        ("level", -2, "expected a level of 0 or more"),
        ("stream", 5, "expected a known stream"),
        ("slot", -7, "expected slot numbers of 0 or more, or home"),
        ("arg", 999, "an operand is no item of the plan"),
        ("lead", 0, "expected all its operands to be items"),
    ],
)
def test_columns_out_of_range_are_refused(column: str, value: int, message: str) -> None:
    from dataclasses import replace

    plan = cases.made("ring", 4, cases.small_workload(16))
    row = int(np.flatnonzero(plan.columns.op == 0)[0])
    values = getattr(plan.columns, column).copy()
    values[plan.columns.ptr[row] if column in ("slot", "arg") else row] = value
    with pytest.raises(PlanError) as caught:
        verify(replace(plan, columns=replace(plan.columns, **{column: values})))
    assert message in str(caught.value)


@given(cases.plans())
@settings(max_examples=30)
def test_ends_of_a_pair_see_their_messages_in_one_order(plan: Plan) -> None:
    columns = plan.columns
    for one in range(plan.num_ranks):
        for other in range(one):
            rows = [
                [row for row in program(plan, rank).tolist()
                 if {int(columns.rank[row]), int(columns.peer[row])} == {one, other}]
                for rank in (one, other)
            ]  # fmt: skip
            assert rows[0] == rows[1]


def test_another_workload_is_refused() -> None:
    plan = cases.made("ring", 2, cases.small_workload(8))
    with pytest.raises(CharmSchedError, match="made for another workload"):
        verify(plan, cases.small_workload(8, "causal"))


def test_rebinding_a_mask_is_proved_anew() -> None:
    plan = cases.made("ring", 4, cases.small_workload(16))
    verify(plan.rebind("causal"))
    causal = cases.made("ring", 4, cases.small_workload(16, "causal"))
    with pytest.raises(PlanError, match="never attended"):
        verify(causal.rebind("full"))


def _kept(plan: Plan, *residents: tuple[int, Item, int]) -> Plan:
    """Give a plan with other residents."""
    from dataclasses import replace

    from charm_sched.plans.items import ItemInterner
    from charm_sched.plans.plan import Residents

    intern = ItemInterner()
    for number in range(len(plan.items)):
        intern(plan.items[number])
    entries = [(rank, intern(item), slot) for rank, item, slot in residents]
    rank, item, slot = np.array(entries, np.int32).reshape(-1, 3).T
    saved = Residents(rank=rank.copy(), item=item.copy(), slot=slot.copy())
    return replace(plan, saved=saved, items=intern.table())


def _kv(owner: int) -> Item:
    return Item("kv", ((4 * owner, 4 * owner + 4),), (0, 1))


def test_what_stays_resident_must_still_be_there_at_the_end() -> None:
    ring = cases.made("ring", 4, cases.small_workload(16))
    # A ring's slot 1 held the neighbour's KV once; slot 0 and 1 hold the last two at the end.
    verify(_kept(ring, (2, _kv(3), 1), (2, _kv(0), 0)))
    with pytest.raises(PlanError, match=r"slot 1 of rank 2, which still holds kv\[4:8\]h0:1"):
        verify(_kept(ring, (2, _kv(1), 1)))
    with pytest.raises(PlanError, match=r"expected kv\[12:16\]h0:1 in slot 0 of rank 2, where"):
        verify(_kept(ring, (2, _kv(3), 0)))


@pytest.mark.parametrize(
    "resident",
    [
        (7, _kv(1), 1), (2, _kv(3), -5), (3, _kv(3), 1), (2, Item("dkv", ((12, 16),), (0, 1)), 1),
        (-1, _kv(3), 1),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_impossible_residents_are_refused(direction: str, resident: tuple[int, Item, int]) -> None:
    plan = cases.made("ring", 4, cases.small_workload(16), direction=direction)
    with pytest.raises(PlanError, match="expected a copy, in a slot of its own"):
        verify(_kept(plan, resident))


def test_two_residents_cannot_share_a_slot() -> None:
    plan = cases.made("ring", 4, cases.small_workload(16), direction="backward")
    with pytest.raises(PlanError, match="in a slot of its own"):
        verify(_kept(plan, (2, _kv(3), 9), (2, _kv(0), 9)))


def test_things_of_the_other_pass_are_refused() -> None:
    g = Item("g", ((0, 4),), (0, 2))
    move = Transfer(src=0, dst=1, items=((g, 5),), level=9, stream="ring")
    plan = cases.made("ring", 2, cases.small_workload(8))
    with pytest.raises(PlanError, match="expected things that a forward has"):
        verify(with_ops(plan, [*plan.ops(), move]))


def test_a_sub_piece_that_also_arrives_later_is_read_out_of_the_whole_before() -> None:
    half, rest = (Item("kv", ((a, a + 2),), (0, 1)) for a in (4, 6))
    keys = ((half, HOME), (rest, HOME), (KV[0], HOME))
    later = Transfer(src=1, dst=0, items=((half, 2),), level=1, stream="ring")
    plan = _two_ranks(
        _send(0, 0), _send(1, 0),
        Attend(rank=0, queries=((Q[0], HOME),), keys=keys, stream="compute"),
        later, _compute(1, 0, 1),
    )  # fmt: skip
    verify(plan)
    brute.run(plan)


COLUMN_NAMES = ("op", "rank", "peer", "level", "stream", "part", "lead", "ptr", "arg", "slot")
ITEM_NAMES = ("kind", "rows", "head_lo", "head_hi", "part", "row_ptr", "row_lo", "row_hi")


@pytest.mark.parametrize("how", ["shorter", "longer", "float", "wide", "huge", "negative"])
@pytest.mark.parametrize(
    ("table", "name"),
    [("columns", name) for name in COLUMN_NAMES] + [("items", name) for name in ITEM_NAMES],
)
def test_columns_of_another_type_length_or_range_never_crash(
    table: str, name: str, how: str
) -> None:
    from dataclasses import replace

    plan = cases.made("charm", 4, cases.small_workload(16), direction="backward")
    column = getattr(getattr(plan, table), name)
    edited = {
        "shorter": column[:-1],
        "longer": np.append(column, column[-1:]),
        "float": column.astype(float),
        "wide": column.astype(np.uint64),
        "huge": np.where(np.arange(len(column)) == 1, np.iinfo(column.dtype).max, column),
        "negative": np.where(np.arange(len(column)) == 1, -9, column.astype(np.int64)),
    }[how]
    if how in ("huge", "negative"):
        edited = edited.astype(column.dtype)
    changed = replace(plan, **{table: replace(getattr(plan, table), **{name: edited})})
    if name in ("slot", "part") and how == "huge":
        try:
            verify(changed)
        except PlanError:
            return
        brute.run(changed)
        return
    with pytest.raises(PlanError):
        verify(changed)


def test_an_item_listed_twice_is_refused() -> None:
    from dataclasses import replace

    plan = cases.made("ring", 2, cases.small_workload(8))
    items = plan.items
    names = ("kind", "rows", "head_lo", "head_hi", "part")
    twice = {name: np.append(getattr(items, name), getattr(items, name)[:1]) for name in names}
    with pytest.raises(PlanError, match="an item is listed twice"):
        verify(replace(plan, items=replace(items, **twice)))


def test_two_ranks_on_one_device_are_refused() -> None:
    from dataclasses import replace

    plan = cases.made("ring", 2, cases.small_workload(8))
    with pytest.raises(PlanError, match="two ranks share a device"):
        verify(replace(plan, devices=("a", "a")))
