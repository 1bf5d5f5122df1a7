"""Strategies by name: their parameters, which of them are tried, and one plan built."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from charm_sched.errors import StrategyError
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.planners.external import is_external, load_external
from charm_sched.planners.pair_agenda import MOST_RANKS_PAIRED
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import Item
from charm_sched.plans.plan import Plan

if TYPE_CHECKING:
    from charm_sched.planners.external import Planner
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

# What is tried, the most promising first; the simulation decides. What is kept resident is tried
# beside it (`search_explore`).
VARIANTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "charm": (
        {"pieces": 0, "remerge": False},
        {"pieces": 5, "remerge": False},
        {"pairs": True, "pieces": 13, "remerge": False},
        {"apart": False, "pairs": False, "pieces": 3, "remerge": False},
        {"pairs": False, "pieces": 5, "remerge": False, "top_up": False},
        {"pairs": False, "pieces": 0, "remerge": False},
        {"pairs": False, "pieces": 5, "remerge": False},
        {"pairs": False, "pieces": 0, "remerge": True},
        {"pairs": False, "pieces": 0, "remerge": True, "top_up": False},
    ),
    "all_gather": (
        {"chunks": 1},
        {"chunks": 4},
        {"chunks": 4, "algorithm": "direct"},
    ),
    "ulysses": tuple({"chunks": chunks} for chunks in (1, 2, 4)),
    "usp": tuple(
        {"inside": way, "chunks": chunks} for way in ("ulysses", "ring") for chunks in (1, 2)
    ),
    "mesh": ({}, {"neighbours": "queries"}, {"neighbours": "keys"}),
    "pass_q": ({"direct": True}, {"direct": False}),
    "domain_mesh": (
        {},
        {"pieces": 4},
        {"groups": 1, "inner_groups": 1},
        {"groups": 1, "inner_groups": 1, "pieces": 4},
        {"inner_groups": 1, "inner_rows": 1, "pieces": 2},
    ),
}
MOST_OPERATIONS = 50_000
"""Of the first plan of a strategy: where it has more, its other parameters are not tried."""
KEEPING = "save"
"""Parameter that keeps what a forward received resident for the backward."""
PAIRING = ("pairs",)
"""Parameters that change nothing in a forward, nor with more than `MOST_RANKS_PAIRED` ranks."""
SPLITTING = ("chunks",)
"""Parameters that cut the same work and the same bytes into more operations."""
KEEPERS = ("reverse_ring",)
"""Strategies whose forward always keeps something resident."""
KEY_MOVERS = ("ring", "reverse_ring", "double_ring", "all_gather", "tasp", "charm")
"""Strategies that move keys, values and their gradients, and nothing else."""


def build(
    planner: Planner,
    name: str,
    workload: Workload,
    partition: Partition,
    *,
    direction: str,
    topology: Topology | None = None,
    devices: Sequence[str] = (),
    params: Mapping[str, Any] | None = None,
    saved: Sequence[tuple[int, Item, int]] = (),
) -> Plan:
    """Let a planner write one plan. The plan is not verified.

    Raises:
        StrategyError: The planner does not take the parameters.
    """
    params = dict(params or {})
    builder = Builder(
        workload, partition, direction=direction, topology=topology, devices=devices, saved=saved
    )
    try:
        inspect.signature(planner).bind(builder, **params)
    except TypeError as error:
        raise StrategyError(f"strategy {name}: {error}; found parameters {params}") from error
    planner(builder, **params)
    return builder.build(name, params)


def residents(made: Plan) -> tuple[tuple[int, Item, int], ...]:
    """List what a plan keeps resident, as a backward builder takes it."""
    saved = made.saved
    return tuple(
        (int(rank), made.items[int(item)], int(slot))
        for rank, item, slot in zip(saved.rank, saved.item, saved.slot, strict=True)
    )


def load_strategy(name: str) -> Planner:
    """Give the planner of a name of `PLANNERS`, or of ``path/to/file.py:function``.

    Raises:
        StrategyError: There is none.
    """
    if is_external(name):
        return load_external(name)
    if name not in PLANNERS:
        raise StrategyError(
            f"strategy: expected {', '.join(PLANNERS)} or path/to/file.py:function, found {name!r}"
        )
    return PLANNERS[name]


def takes(planner: Planner, name: str) -> bool:
    """Say whether a planner takes a parameter of this name."""
    parameters = list(inspect.signature(planner).parameters.values())[1:]
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _check_value(planner: Planner, name: str, value: object) -> None:
    """Check a parameter's value against the type of the planner's default."""
    default = inspect.signature(planner).parameters[name].default
    for kind, text in ((bool, "true or false"), (int, "a whole number")):
        if isinstance(default, kind):
            if type(value) is not kind:
                raise StrategyError(f"parameter {name}: expected {text}, found {value!r}")
            return


def check_params(planners: Mapping[str, Planner], params: Mapping[str, Any]) -> None:
    """Check that some planner takes each parameter, and that values are of the right kind.

    Raises:
        StrategyError: None takes one, or a value is of another kind than the default.
    """
    for param in params:
        if not any(takes(planner, param) for planner in planners.values()):
            raise StrategyError(
                f"parameter {param}: expected one that a strategy takes, "
                f"but none of {', '.join(planners)} takes it"
            )
        for planner in planners.values():
            if param in inspect.signature(planner).parameters:
                _check_value(planner, param, params[param])


def variants_of(name: str, planner: Planner, params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the parameters to try, in order; ``params`` are fixed. Nothing is kept resident."""
    fixed = {key: value for key, value in params.items() if takes(planner, key)}
    merged = [{**variant, **fixed} for variant in VARIANTS.get(name, ({},))]
    return list({repr(sorted(variant.items())): variant for variant in merged}.values())


def distinct(
    variants: Sequence[Mapping[str, Any]], direction: str, ranks: int
) -> list[Mapping[str, Any]]:
    """List the parameters that make a difference to all before them, in order.

    Where messages are not planned by themselves, those that ask for it are left out.
    """
    ignored = PAIRING if direction == "forward" or ranks > MOST_RANKS_PAIRED else ()
    variants = [v for v in variants if not any(v.get(key) for key in ignored)] or variants
    found: dict[str, Mapping[str, Any]] = {}
    for variant in variants:
        which = sorted((key, value) for key, value in variant.items() if key not in ignored)
        found.setdefault(repr(which), variant)
    return list(found.values())


def may_keep(name: str, params: Mapping[str, Any]) -> bool:
    """Say whether a forward with these parameters may keep something resident."""
    return name in KEEPERS or is_external(name) or bool(params.get(KEEPING))


def alike(params: Mapping[str, Any]) -> str:
    """Name what parameters have in common that only cut work and bytes differently."""
    return repr(sorted((key, value) for key, value in params.items() if key not in SPLITTING))
