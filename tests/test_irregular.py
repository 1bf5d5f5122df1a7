"""Machines drawn at random: every strategy gives a plan that holds, or says why not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import brute, irregular

from charm_sched.bounds.limits import Limits, check
from charm_sched.errors import StrategyError, TopologyError
from charm_sched.planners import PLANNERS
from charm_sched.plans.plan import DIRECTIONS, Plan, Schedule
from charm_sched.proof.verifier import verify
from charm_sched.search.planning import plan, plan_all
from charm_sched.simulator import simulate

REASONED = re.compile(r"expected .*found", re.DOTALL)
UNHURRIED = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def hold(made: Plan, case: irregular.Case, limits: Limits) -> None:
    """Prove a plan in three ways, and hold its times against both bounds."""
    verify(made, case.workload)
    brute.run(made)
    for rule in ("grouped", "free"):
        check(
            made, made.params, simulate(made, case.topology, rule=rule).makespan, *limits.of(made)
        )


def check_reason(text: str) -> None:
    assert REASONED.search(text), text


def limits_of(case: irregular.Case) -> Limits:
    return Limits(case.topology, case.workload, case.devices)


@pytest.mark.parametrize("name", PLANNERS)
@given(data=st.data())
@settings(max_examples=7, **UNHURRIED)
def test_every_strategy_plans_or_says_why_not(name: str, data: st.DataObject) -> None:
    case = data.draw(irregular.cases(most_devices=6, most_tokens=9))
    fixed = data.draw(irregular.params(name))
    try:
        made = list(irregular.passes(case, name, fixed))
        for one in made:
            hold(one, case, limits_of(case))
    except (StrategyError, TopologyError) as error:
        check_reason(str(error))
        return
    assert [one.direction for one in made] == list(DIRECTIONS)


@given(case=irregular.cases(most_devices=5, most_tokens=8), data=st.data())
@settings(max_examples=5, **UNHURRIED)
def test_auto_plans_or_says_why_not(case: irregular.Case, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["auto", case.partition]))
    memory = data.draw(st.sampled_from([None, 1e4, 1e9]))
    try:
        found = plan_all(
            case.topology, case.workload, strategies=("auto",), partition=kind,
            devices=case.devices, memory=memory,
        )  # fmt: skip
    except (StrategyError, TopologyError) as error:
        check_reason(str(error))
        return
    schedule = found.schedule()
    assert isinstance(schedule, Schedule)
    for made in schedule.plans:
        hold(made, case, limits_of(case))
    for refusal in found.refused:
        if not refusal.reason.endswith("was refused"):
            check_reason(refusal.reason)
    _check_chosen(found)


def _check_chosen(found: Any) -> None:
    """Check that no strategy alone, with one partition, beats what was chosen."""
    if any(result.fits is False for result in found.chosen.values()):
        return
    total = sum(result.timeline.makespan for result in found.chosen.values())
    pairs: dict[tuple[str, str], list[float]] = {}
    for row in found.results:
        if row.fits is not False and not len(row.plan.saved):
            pairs.setdefault((row.strategy, row.partition), []).append(row.timeline.makespan)
    assert all(total <= sum(pair) * 1.0051 for pair in pairs.values() if len(pair) == 2)


@pytest.mark.parametrize("name", PLANNERS)
def test_one_device_of_many(name: str) -> None:
    """The smallest domain there is: no tier, no pace, nobody to talk to."""
    case = irregular.lone()
    made = list(irregular.passes(case, name, {}))
    for one in made:
        hold(one, case, limits_of(case))


def test_a_pair_without_a_route_is_refused() -> None:
    case = irregular.chain()
    with pytest.raises(StrategyError, match=r'expected a route from "." to ".", found none'):
        plan(case.topology, case.workload, strategy="all_gather", direction="forward")
    one = plan(case.topology, case.workload, strategy="ring", direction="forward", ranks=2)
    assert isinstance(one, Plan)
