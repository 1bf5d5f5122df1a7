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


class CharmSchedError(Exception):
    """Base of every error this package raises on purpose."""


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
