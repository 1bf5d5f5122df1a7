"""Errors a user can meet. Each message says where, what was expected and what was found.

CharmSchedError
├── TopologyError (ValueError)     a topology file or graph is wrong
├── WorkloadError (ValueError)     a workload, mask or partition is wrong
├── PlanError (ValueError)         a plan is not exactly attention, or cannot run
│   └── PlanFileError              a stored plan cannot be read
├── StrategyError (ValueError)     a strategy cannot serve this workload or cannot be loaded
├── SimulationError                the simulation cannot end (a starved transfer, a missing route)
└── RuntimeFailure                 the distributed run failed: rank, op and peer are named

Every error is constructed from one message, so that pickling and SimPy can re-create it from
`.args`.
"""

from __future__ import annotations

import re

_LONGEST_WORD, _LONGEST_MESSAGE = 300, 4000
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")
_LONG_QUOTE = re.compile(rf"(?<!\w)(['\"])[^'\"]{{{_LONGEST_WORD + 1},}}\1")


def cut_long(message: str) -> str:
    """Shorten what a message repeats of a long value: words, texts in quotes, and the whole.

    >>> len(cut_long(f"expected a name, found {'x' * 10**6}"))
    323
    """
    for pattern in (_LONG_WORD, _LONG_QUOTE):
        message = pattern.sub(lambda found: _middle_out(found[0], _LONGEST_WORD), message)
    return _middle_out(message, _LONGEST_MESSAGE)


def _middle_out(text: str, limit: int) -> str:
    """Leave out the middle of a text that is longer than the limit."""
    if len(text) <= limit:
        return text
    end = limit // 4
    return f"{text[: limit - end - 3]}...{text[-end:]}"


class CharmSchedError(Exception):
    """Base of every error this package raises on purpose; long values in its message are cut."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(cut_long(a) if isinstance(a, str) else a for a in args))


class TopologyError(CharmSchedError, ValueError):
    """A topology file or graph is wrong."""


class WorkloadError(CharmSchedError, ValueError):
    """A workload, mask or partition is wrong."""


class PlanError(CharmSchedError, ValueError):
    """A plan is not exactly attention, or cannot run."""


class PlanFileError(PlanError):
    """A stored plan cannot be read."""


class StrategyError(CharmSchedError, ValueError):
    """A strategy cannot serve this workload, or cannot be loaded."""


class SimulationError(CharmSchedError):
    """The simulation cannot end."""


class RuntimeFailure(CharmSchedError):  # noqa: N818  (RuntimeError is taken by Python)
    """A distributed run failed; the message names rank, op and peer."""
