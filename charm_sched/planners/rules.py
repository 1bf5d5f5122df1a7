"""Rules of a list schedule: which message goes first. Several are tried, the best plan is kept.

No rule is best everywhere, and which one is can change when rates change by tenths of a per cent:
what ends at the same time in one plan ends one after the other in the next. The planned end
says which one to take, as a plan runs about as long as it was planned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from charm_sched.planners.dispatch import Dispatcher, Message, Task
from charm_sched.planners.sittings import Sitting

PRECISION = 0.01
"""A plan takes as long as planned within this part (decision 3); for less the first rule stays."""
WAIT = 0.02
"""What ends within this part of a mean message's time counts as ending together, by some rules."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What of a message decides, in this order; then the longest tail. What crosses goes first.

    Attributes:
        across: For a message that crosses itself: whether it has gradients (``back``), and its
            first sub-piece (``sub``).
        inside: The same for what is passed on, or stays, inside.
        wait: What happens within this part of a mean message's time is handled together.
    """

    across: tuple[str, ...]
    inside: tuple[str, ...]
    wait: float = 0.0

    def order(self, message: Message) -> tuple[float, ...]:
        """Give the order of a message."""
        names = self.inside if message.depth > message.crosses else self.across
        return (message.crosses, *(float(getattr(message, name)) for name in names))


RULES = (
    Rule(across=("back", "sub"), inside=("sub",)),
    Rule(across=("back", "sub"), inside=("sub",), wait=WAIT),
    Rule(across=("sub",), inside=("sub",)),
    Rule(across=("back", "sub"), inside=("back", "sub")),
    Rule(across=("back",), inside=("back",)),
    Rule(across=("back",), inside=("back",), wait=WAIT),
    Rule(across=("back",), inside=("sub",)),
)


def plan_best(
    tasks: Sequence[Task], dispatcher: Callable[[float], Dispatcher]
) -> list[list[Sitting]]:
    """Plan tasks by each rule, and leave them as the best one planned them.

    Args:
        tasks: All tasks.
        dispatcher: Gives a new dispatcher that handles together what happens within some seconds.

    Returns:
        What each rank attends, in order.
    """
    messages = [task for task in tasks if isinstance(task, Message)]
    mean = sum(message.seconds for message in messages) / max(1, len(messages))
    ends, found = [], []
    for rule in RULES[: None if messages else 1]:
        for message in messages:
            message.order = rule.order(message)
        sittings = dispatcher(rule.wait * mean).run(tasks)
        last = [of[-1].end for of in sittings if of]
        ends.append(max([0.0, *last, *(message.end for message in messages)]))
        found.append((sittings, [(m.lane, m.level, m.start, m.end) for m in messages]))
    best = min(range(len(ends)), key=ends.__getitem__)
    sittings, places = found[best if ends[best] < (1 - PRECISION) * ends[0] else 0]
    for message, (lane, level, start, end) in zip(messages, places, strict=True):
        message.lane, message.level, message.start, message.end = lane, level, start, end
    return sittings


__all__ = ["RULES", "Rule", "plan_best"]
