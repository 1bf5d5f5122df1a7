from __future__ import annotations

import pytest
from hypothesis import given
from support import cases

from charm_sched.errors import PlanError
from charm_sched.plans.items import Item, parse_item
from charm_sched.plans.ops import parse_op
from charm_sched.plans.plan import Plan


@given(cases.plans())
def test_every_op_has_a_text_form_that_parses_back(plan: Plan) -> None:
    for op in plan.ops():
        assert parse_op(str(op)) == op


def test_what_the_text_form_looks_like() -> None:
    texts = [
        "transfer 0 -> 1: kv[0:64]h0:8@1 | level 0 on ring",
        "attend 1: q[64:128]h0:32 x kv[0:64]h0:8 kv[128:192]h0:8 | part 1 on compute",
        "merge 1: o[64:128]h0:32.1 => o[64:128]h0:32 | on compute",
    ]
    assert [str(parse_op(text)) for text in texts] == texts


@pytest.mark.parametrize(
    "text",
    ["", "send 0 -> 1: kv[0:4]h0:1@1 | level 0 on ring", "attend 0: q[0:4]h0:1 | on compute",
     "transfer 0 -> 1: kv[0:4]h0:1@x | level 0 on ring", "transfer 0 -> 1: kv | level 0 on r"],
)  # fmt: skip
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="expected"):
        parse_op(text)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (("x", ((0, 4),), (0, 1), 0), "expected a kind of q, kv, o, g, dq, dkv"),
        (("q", (), (0, 1), 0), "expected sorted disjoint rows"),
        (("q", ((4, 8), (0, 2)), (0, 1), 0), "expected sorted disjoint rows"),
        (("q", ((0, 4),), (1, 1), 0), "expected a range of heads"),
        (("kv", ((0, 4),), (0, 1), 2), "expected part 0, found 2"),
    ],
)
def test_impossible_items_are_refused(item: tuple, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        Item(*item)
    assert message in str(caught.value)


def test_item_text() -> None:
    item = Item("dkv", ((0, 128), (896, 1024)), (0, 8), 1)
    assert str(item) == "dkv[0:128+896:1024]h0:8.1"
    assert parse_item(str(item)) == item
