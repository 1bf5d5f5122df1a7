"""The simulator: a plan on seconds. SimPy is the clock, links are fluid and shared max-min fair."""

if not __name__.startswith("charm_sched."):
    raise ImportError(f"import charm_sched.simulator, not {__name__}")

from charm_sched.simulator.engine import simulate
from charm_sched.simulator.maxmin import max_min_rates

__all__ = ["max_min_rates", "simulate"]
