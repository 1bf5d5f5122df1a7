from __future__ import annotations

import pytest

from charm_sched.testbed.faults import Fault, parse_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("slow:a->b=0.1@0.5", Fault(kind="slow", target="a->b", factor=0.1, when=0.5)),
        ("cut:n0/g0->n0/s@1", Fault(kind="cut", target="n0/g0->n0/s", factor=1.0, when=1.0)),
        ("flap:a->b@0", Fault(kind="flap", target="a->b", factor=1.0, when=0.0)),
        ("kill:3@2.5", Fault(kind="kill", target="3", factor=1.0, when=2.5)),
    ],
)
def test_faults_are_read(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text", ["", "kill", "kill:3", "melt:3@1", "slow:a->b@1", "slow:a->b=0@1", "cut:@1", "cut:a@-1"]
)
def test_other_texts_are_refused_with_the_right_spelling(text: str) -> None:
    with pytest.raises(ValueError, match=r"slow:A->B=0.1@0.5, cut:A->B@0.5"):
        parse_fault(text)
