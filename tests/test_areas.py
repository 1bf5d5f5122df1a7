from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support import brute, cases

from charm_sched.masks.areas import row_set_areas
from charm_sched.masks.prefix_areas import prefix_areas
from charm_sched.partition import Partition, Rows, rows_of
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import Item, ItemInterner
from charm_sched.plans.plan import Plan
from charm_sched.workload import Workload

SEQ_LEN = 29


@st.composite
def row_sets(draw: st.DrawFn) -> list[Rows]:
    chosen = st.sets(st.integers(0, SEQ_LEN - 1), max_size=SEQ_LEN)
    sets = [rows_of((t, t + 1) for t in draw(chosen)) for _ in range(draw(st.integers(1, 4)))]
    return list(dict.fromkeys(rows for rows in sets if rows))


@given(cases.masks(SEQ_LEN), row_sets())
def test_areas_of_many_intervals_are_counted_exactly(text: str, sets: list[Rows]) -> None:
    work = Workload(seq_len=SEQ_LEN, heads=1, head_dim=1, mask=text)
    plan = nothing(work)
    intern = ItemInterner()
    for rows in sets:
        intern(Item("kv", rows, (0, 1)))
    q, k = (part.reshape(-1) for part in np.indices((len(sets), len(sets))))
    counted = [
        sum(
            brute.visible(plan, i, j)
            for low, high in sets[a]
            for i in range(low, high)
            for first, last in sets[b]
            for j in range(first, last)
        )
        for a, b in zip(q, k, strict=True)
    ]
    assert row_set_areas(work, intern.table(), q, k).tolist() == counted
    assert prefix_areas(work, intern.table(), q, k).tolist() == counted


@given(st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=6))
def test_holding_finds_every_set_that_contains(sets: list[set[int]]) -> None:
    intern = ItemInterner()
    known = list(dict.fromkeys(rows_of((t, t + 1) for t in tokens) for tokens in sets if tokens))
    for rows in known:
        intern(Item("kv", rows, (0, 1)))
    tokens = [{t for low, high in rows for t in range(low, high)} for rows in known]
    for inner, some in enumerate(tokens):
        found = intern.table().holding(inner).tolist()
        assert found == [some <= other for other in tokens]


def test_thousands_of_intervals_and_documents_are_quick() -> None:
    documents = [1 + (7919 * i) % 997 for i in range(2000)]
    work = Workload(
        seq_len=sum(documents), heads=1, head_dim=1, mask=f"docs:{','.join(map(str, documents))}"
    )
    b = Builder(work, Partition.of("per-document", work, 16))
    start = time.process_time()
    areas = b.areas(b.shards("q")[:, None], b.shards("kv"))
    assert time.process_time() - start < 10  # about 0.6 s here
    assert areas.sum() == sum(length * (length + 1) // 2 for length in documents)


def nothing(work: Workload) -> Plan:
    return Builder(work, Partition.contiguous(work.seq_len, 1)).build()
