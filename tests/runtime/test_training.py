"""Attention in models, on four processes: contexts, FSDP, tensor parallel, autocast, compile."""

from __future__ import annotations

from typing import Any

import pytest
from test_distributed import results, spawn

pytestmark = pytest.mark.distributed
EXACT = 1e-12  # fp64, over a model of two layers


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Run all tasks in one set of processes; give each rank's results by task."""
    return results(spawn("training", 4, tmp_path_factory.mktemp("training")))


def test_a_model_as_it_is_trains_in_a_context(found: list[dict[str, Any]]) -> None:
    for rank in found:
        wrong = {k: v for k, v in rank["in_context"].items() if k != "refused"}
        assert set(wrong) == {
            "plain", "recompute", "recompute saved", "by another name", "compiled",
            "compiled by another name", "after",
        }  # fmt: skip
        assert max(wrong.values()) < EXACT, wrong


def test_a_context_refuses_what_it_cannot_do(found: list[dict[str, Any]]) -> None:
    expected = {
        "attn_mask": "attn_mask: expected None",
        "two-way": "is_causal: expected True, as the mask is causal, found False",
        "cross": "is_causal: expected True",
        "heads": "4 query heads on 2 KV heads: expected enable_gqa=True",
        "dropout": "dropout_p: expected 0, found 0.1",
        "by another name": "is_causal: expected True",
        "repeated": "k: expected [batch, heads, tokens, size] = [2, 2, ",
        "dims": "expected one for each of the 1 buffers, found 0",
        "type": "buffer 0: expected a tensor, found NoneType",
        "length": "shard: expected 42 in dim 1, found [42, 2]",
        "no dim": "found [42, 2]",
        "view": "found a view",
        "gradient": "expected a tensor without gradient",
        "twice": "buffer 1: the same memory is an earlier buffer",
        "kept": "no_restore_buffers: one is not in buffers",
    }
    for number, rank in enumerate(found):
        said = rank["in_context"]["refused"]
        one = said.pop("one rank")
        told = f"rank {number}: rank 1 cannot take part: context_parallel: is_causal"
        assert one.startswith("context_parallel: is_causal" if number == 1 else told)
        assert set(said) == set(expected)
        for name, part in expected.items():
            assert part in said[name], name


def test_weights_may_be_sharded_over_both_dimensions(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert max(rank["fully_sharded"].values()) < EXACT


def test_heads_may_be_split_beside_the_sequence(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["tensor_parallel"] < EXACT
        assert "found a DTensor; give x.to_local()" in rank["distributed_tensors"]


def test_precision_is_the_plans(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert 0 < rank["precise"]["autocast"] < 1e-2
        assert rank["precise"]["fp32"] < 1e-5
        assert rank["precise"]["silent"] == 0.0


def test_flex_attention_runs_where_it_can(found: list[dict[str, Any]]) -> None:
    assert max(rank["flexible"] for rank in found) < 1e-10


def test_a_model_compiles_as_one_graph(found: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(found):
        done = rank["compiled"]
        exact = ("charm", "charm silent", "saved", "saved silent", "changing")
        assert max(done[name] for name in exact) < EXACT, done
        assert done["compiles"] == 1, "offsets of documents must not compile the graph again"
        assert f"rank {number}: q: expected [batch, heads, tokens, size]" in done["wrong plan"]


def test_torch_accepts_the_operator(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert set(rank["operator_checked"].values()) == {"SUCCESS"}
        assert len(rank["operator_checked"]) == 3


def test_megatron_layers_attend_by_a_plan(found: list[dict[str, Any]]) -> None:
    expected = {
        "dropout": "attention_dropout: expected 0.0, found 0.1",
        "sinks": "softmax_type: expected vanilla, found learnable",
        "ranks": "context_parallel_size: expected 4, found 5",
        "cross": "attention_type: expected self, found cross",
        "window": "expected a plan for the mask window:8",
        "unknown": "arguments that are not known: expected [], found ['k_channels']",
        "two-way": "attn_mask_type causal does not go with the plan's mask full",
        "arbitrary": "attn_mask_type arbitrary does not go with",
        "padding": "or padding with packed_seq_params",
        "bias": "attention_bias: expected None",
        "format": "expected thd, found bshd",
        "cut": "expected a plan with the shards that Megatron gives the ranks",
        "zigzag": "expected a plan with the shards that Megatron gives the ranks",
    }
    for rank in found:
        done = rank["megatron"]
        assert max(done["dense"], done["packed"]) < 1e-10
        assert set(done["refused"]) == set(expected)
        for name, part in expected.items():
            assert part in done["refused"][name], name


def test_torchtitan_modules_attend_by_a_plan(found: list[dict[str, Any]]) -> None:
    expected = {
        "masks": "attention_masks: expected None",
        "unknown": "out_transform: expected None",
        "two-way": "is_causal: expected True",
        "groups": "enable_gqa is False",
        "none": "no module of Linear has an inner_attention",
    }
    for rank in found:
        done = rank["torchtitan"]
        assert max(done["causal"], done["packed"]) < 1e-10
        for name, part in expected.items():
            assert part in done["refused"][name], name


@pytest.mark.slow
def test_a_model_compiles_to_machine_code(tmp_path: Any) -> None:
    assert max(results(spawn("machine_code", 2, tmp_path))) < EXACT
