from __future__ import annotations

import pickle

import pytest

from charm_sched.errors import TopologyError
from charm_sched.topology.profiles import ComputeProfile, KernelRate, source_of


def rate(direction: str, head_dim: int, causal: bool, tflops: float, **more: object) -> KernelRate:
    return KernelRate(
        direction=direction,
        head_dim=head_dim,
        causal=causal,
        dtypes=("bf16", "fp16"),
        flops_per_second=tflops * 1e12,
        **more,  # type: ignore[arg-type]
    )


PROFILE = ComputeProfile(
    name="card",
    peak={"bf16": 300e12, "fp32": 20e12},
    rates=(
        rate("forward", 64, False, 100),
        rate("forward", 128, False, 200, assumed=True, source="a guess"),
        rate("forward", 128, True, 150),
    ),
    efficiency=0.5,
    overhead=5e-6,
    memory_bandwidth=2e12,
    assumed=("peak.fp32", "efficiency", "overhead", "memory_bandwidth"),
    source="peak: datasheet; overhead: a margin; beside it; peak.fp32: a half",
)


def test_exact_entry() -> None:
    assert PROFILE.rate(direction="forward", head_dim=128, causal=True, dtype="fp16") == (
        150e12,
        None,
    )


@pytest.mark.parametrize(
    ("head_dim", "used"), [(32, 64), (80, 64), (96, 64), (97, 128), (256, 128)]
)
def test_nearest_head_dimension(head_dim: int, used: int) -> None:
    found, note = PROFILE.rate(direction="forward", head_dim=head_dim, causal=False, dtype="bf16")
    assert found == {64: 100e12, 128: 200e12}[used]
    assert note is not None
    assert note.startswith(
        f"card: no forward bf16 rate for head dimension {head_dim} (full); "
        f"the rate for {used} is used"
    )
    assert note.endswith("is used") == (used == 64)  # the rate for 128 is itself assumed
    exact = PROFILE.rate(direction="forward", head_dim=used, causal=False, dtype="bf16")[1]
    assert (exact is None) == (used == 64)
    assert exact is None or "is assumed" in exact


@pytest.mark.parametrize(
    ("direction", "dtype", "expected", "shown"),
    [
        ("backward", "bf16", 150e12, "no backward bf16 rate (causal); 0.5 of the peak 300 TFLOP/s"),
        ("forward", "fp32", 10e12, "no forward fp32 rate (causal); 0.5 of the peak 20 TFLOP/s"),
    ],
)
def test_peak_times_efficiency(direction: str, dtype: str, expected: float, shown: str) -> None:
    found, note = PROFILE.rate(direction=direction, head_dim=128, causal=True, dtype=dtype)
    assert found == expected
    assert note == f"card: {shown} is assumed"


def test_unknown_dtype() -> None:
    with pytest.raises(
        TopologyError, match=r"card: expected a peak for fp64, found bf16, fp32 \(add peak\.fp64\)"
    ):
        PROFILE.rate(direction="forward", head_dim=128, causal=True, dtype="fp64")


def test_assumptions() -> None:
    assert PROFILE.assumptions() == (
        "card: peak.fp32 20 TFLOP/s is assumed (a half)",
        "card: efficiency 0.5 is assumed",
        "card: overhead 5 us is assumed (a margin; beside it)",
        "card: memory_bandwidth 2 TB/s is assumed",
        "card: forward rate 200 TFLOP/s for head dimension 128 (full, bf16, fp16) is assumed "
        "(a guess)",
    )


def test_sources() -> None:
    assert source_of("one for all", "overhead") == "one for all"
    assert (
        source_of("github: one for all; beside it", "overhead") == "github: one for all; beside it"
    )
    assert source_of("bandwidth: x; and z; latency: y", "bandwidth") == "x; and z"
    assert source_of("bandwidth: x; latency: y", "flow_cap") == ""
    assert source_of("peak: x; peak.fp64: y", "peak.fp64") == "y"
    assert source_of("peak: x; peak.fp64: y", "peak.fp32") == "x"


def test_hash_and_pickle() -> None:
    assert hash(PROFILE) == hash(pickle.loads(pickle.dumps(PROFILE)))
    assert pickle.loads(pickle.dumps(PROFILE)) == PROFILE
