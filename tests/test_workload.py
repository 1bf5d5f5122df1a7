from __future__ import annotations

import pytest

from charm_sched.errors import WorkloadError
from charm_sched.workload import MODELS, Workload


def test_bytes_per_row_of_every_kind() -> None:
    work = Workload(seq_len=8, batch=3, heads=4, kv_heads=2, head_dim=64, v_head_dim=32)
    assert work.row_bytes("q") == 3 * 64 * 2
    assert work.row_bytes("kv") == 3 * (64 + 32) * 2
    assert work.row_bytes("o") == 3 * (32 * 4 + 4)  # fp32 on the wire, with its lse
    assert work.row_bytes("o", final=True) == 3 * (32 * 2 + 4)  # as the output is in the end
    assert work.row_bytes("dkv", final=True) == 3 * (64 + 32) * 2
    assert work.row_bytes("g") == 3 * (32 * 2 + 4 + 4)  # dout, lse, delta
    assert work.row_bytes("dq") == 3 * 64 * 4
    assert work.row_bytes("dkv") == 3 * (64 + 32) * 4


def test_gradients_travel_in_the_dtype_asked_for() -> None:
    assert Workload(seq_len=8, grad_dtype="bf16").row_bytes("dq") == 128 * 2
    assert Workload(seq_len=8, dtype="fp64").wire_dtype == "fp64"
    assert Workload(seq_len=8, dtype="fp64").final_dtype == "fp64"
    assert Workload(seq_len=8, dtype="fp64").row_bytes("o") == 128 * 8 + 8


@pytest.mark.parametrize(
    ("dtype", "grad_dtype", "final"),
    [("bf16", None, "bf16"), ("fp16", "bf16", "fp16"), ("fp32", "bf16", "bf16"),
     ("fp32", "fp64", "fp32"), ("bf16", "fp64", "bf16")],
)  # fmt: skip
def test_final_results_travel_in_the_dtype_unless_the_other_is_smaller(
    dtype: str, grad_dtype: str | None, final: str
) -> None:
    assert Workload(seq_len=8, dtype=dtype, grad_dtype=grad_dtype).final_dtype == final


def test_flops_are_those_of_flash_attention() -> None:
    work = Workload(seq_len=8, heads=4, head_dim=128)
    assert work.flops_per_pair("forward") == 4 * 128
    assert work.flops_per_pair("backward") == 2.5 * work.flops_per_pair("forward")
    uneven = Workload(seq_len=8, heads=4, head_dim=192, v_head_dim=128, batch=2)
    assert uneven.flops_per_pair("forward") == 2 * 2 * (192 + 128)
    assert uneven.flops_per_pair("backward") == 2 * 2 * (3 * 192 + 2 * 128)


def test_document_round_trip() -> None:
    work = Workload(seq_len=9, mask="docs:4,5", kv_heads=8, softmax_scale=0.5)
    assert Workload.from_document(work.to_document()) == work


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seq_len": 0}, "seq_len: expected a whole number of 1 or more, found 0"),
        ({"seq_len": 2.5}, "seq_len: expected a whole number of 1 or more, found 2.5"),
        ({"seq_len": True}, "found True"),
        ({"heads": 6, "kv_heads": 4}, "kv_heads: expected a divisor of heads = 6, found 4"),
        ({"dtype": "fp8"}, "dtype: expected bf16, fp16, fp32, fp64, found 'fp8'"),
        ({"grad_dtype": "int8"}, "grad_dtype: expected"),
        ({"mask": "docs:1,2"}, "hold 3 tokens"),
        ({"seq_len": 2**30, "heads": 8}, "too long to count exactly with 8 heads and batch 1"),
        ({"softmax_scale": float("nan")}, "softmax_scale: expected a positive number, found nan"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        Workload(**{"seq_len": 8, **fields})  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_unknown_keys_of_a_document_are_named() -> None:
    with pytest.raises(WorkloadError, match="check sequence"):
        Workload.from_document({**Workload(seq_len=8).to_document(), "sequence": 3})


def test_published_head_shapes_divide() -> None:
    for shape in MODELS.values():
        assert shape.heads % shape.kv_heads == 0
