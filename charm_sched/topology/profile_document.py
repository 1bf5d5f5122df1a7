"""A compute profile as a file writes it."""

from __future__ import annotations

from typing import Any

from charm_sched import units
from charm_sched.topology.profiles import ComputeProfile, KernelRate


def profile_document(profile: ComputeProfile) -> dict[str, Any]:
    """Return a profile as a file writes it."""
    entry: dict[str, Any] = {
        "peak": {k: units.format_rate(v, digits=None) for k, v in profile.peak.items()},
        "efficiency": profile.efficiency,
        "overhead": units.format_seconds(profile.overhead, digits=None),
        "memory_bandwidth": units.format_bandwidth(profile.memory_bandwidth, digits=None),
        **_own_numbers(profile),
        "assumed": list(profile.assumed),
    }
    if profile.source:
        entry["source"] = profile.source
    if profile.rates:
        entry["rates"] = [
            {
                "direction": rate.direction,
                "head_dim": rate.head_dim,
                "causal": rate.causal,
                "dtypes": list(rate.dtypes),
                "rate": units.format_rate(rate.flops_per_second, digits=None),
                **_by_length(rate),
                **({"assumed": True} if rate.assumed else {}),
                **({"source": rate.source} if rate.source else {}),
            }
            for rate in profile.rates
        ]
    return entry


def _own_numbers(profile: ComputeProfile) -> dict[str, Any]:
    """Return the numbers of a profile that need not be there."""
    found: dict[str, Any] = {}
    if profile.memory is not None:
        found["memory"] = units.format_bytes(profile.memory, digits=None)
    if profile.interference != 1:
        found["interference"] = profile.interference
    return found


def _by_length(rate: KernelRate) -> dict[str, Any]:
    table = {str(n): units.format_rate(value, digits=None) for n, value in rate.by_length}
    return {"by_length": table} if table else {}
