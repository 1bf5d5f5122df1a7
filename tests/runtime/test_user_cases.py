"""Cases that users of other context-parallel attention reported, each with the right value."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attention_cases as cases
import pytest
import torch

from charm_sched.errors import StrategyError
from charm_sched.masks.mask import Mask
from charm_sched.partition import count_rows
from charm_sched.runtime import packed_mask
from charm_sched.workload import Workload

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def results(
    strategy: str, ranks: int, *, partition: str = "zigzag", params: Any = None,
    tensors: Tensors | None = None, **work: Any,
) -> tuple[cases.Results, cases.Results]:  # fmt: skip
    """Give what a strategy computes and dense attention in fp64."""
    shape = {"heads": 2, "head_dim": 8, "dtype": "fp64"} | work
    workload = Workload(**shape)
    schedule = cases.make_schedule(strategy, workload, partition, ranks, params)
    tensors = tensors or cases.make_tensors(workload)
    found = cases.run_in_process(schedule, tensors, seed=ranks)
    return found, cases.dense_attention(workload, *tensors)


def check(found: cases.Results, exact: cases.Results, tolerance: float = 1e-10) -> None:
    assert all(torch.isfinite(x).all() for x in found)
    wrong = cases.errors(found, exact)
    assert max(wrong.values()) < tolerance, wrong


@pytest.mark.parametrize("length", [7, 8, 10])
@pytest.mark.parametrize("partition", ["zigzag", "contiguous"])
def test_the_last_valid_token_counts(length: int, partition: str) -> None:
    """TransformerEngine 1930, 1929, Megatron-LM 1669: 7 tokens padded to 8 or 10 on 2 ranks."""
    values = torch.tensor([1.0, 1, 1, 1, 2, 2, 2]).half()
    x = torch.zeros(1, 1, length, 8, dtype=torch.float16)
    x[0, 0, :7] = values[:, None]
    (out, *_), _ = results(
        "ring", 2, partition=partition, seq_len=length, heads=1, dtype="fp16",
        mask=packed_mask([0, 7], length), tensors=(torch.zeros_like(x), x, x, x),
    )  # fmt: skip
    means = values.float().cumsum(0) / torch.arange(1, 8)  # equal scores: means of what is seen
    torch.testing.assert_close(out[0, 0, :7, 0].float(), means, rtol=1e-3, atol=1e-3)
    assert abs(float(out[0, 0, 6, 0]) - 10 / 7) < 1e-3
    assert not out[0, 0, 7:].any()


@pytest.mark.parametrize("strategy", ["ring", "charm", "all_gather"])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_at_padding_between_documents_are_zero(strategy: str, causal: bool) -> None:
    """TransformerEngine 2186: large gradients, then NaN, in a chunk that is all padding."""
    cu, padded = [0, 9, 17, 25, 37, 45, 57], [0, 12, 20, 28, 40, 48, 60]
    mask = packed_mask(cu, 60, padded=padded, causal=causal)
    found, exact = results(strategy, 2, seq_len=60, mask=mask)
    check(found, exact)
    padding = torch.ones(60, dtype=torch.bool)
    for (begin, end), start in zip(pairwise(cu), padded, strict=False):
        padding[start : start + end - begin] = False
    assert padding.sum() == 3
    for result in found:
        assert not result[:, :, padding].any()


@pytest.mark.parametrize("strategy", ["ring", "charm"])
def test_a_length_that_no_rank_count_divides(strategy: str) -> None:
    """EasyContext 47: 2999 tokens on 4 ranks."""
    work: dict[str, Any] = {"seq_len": 2999, "heads": 1, "head_dim": 4, "dtype": "fp32"}
    schedule = cases.make_schedule(strategy, Workload(**work), "zigzag", 4)
    counts = [count_rows(shard) for shard in schedule.forward.partition.shards]
    assert sorted(counts) == [749, 750, 750, 750]
    check(*results(strategy, 4, **work), tolerance=1e-4)


def test_a_long_length_that_is_odd() -> None:
    """ring-flash-attention 39: 32769 tokens."""
    length, size = 32769, 64
    documents = (size,) * (length // size) + (1,)
    mask = Mask(kind="docs", documents=documents)
    work = Workload(seq_len=length, heads=1, head_dim=4, dtype="fp32", mask=mask)
    schedule = cases.make_schedule("ring", work, "zigzag", 2)
    tensors = cases.make_tensors(work)
    found = cases.run_in_process(schedule, tensors, seed=1)
    for start in (0, 16384, 32704):
        part = slice(start, start + size)
        one = Workload(seq_len=size, heads=1, head_dim=4, dtype="fp32")
        exact = cases.dense_attention(one, *(x[:, :, part] for x in tensors))
        check(tuple(x[:, :, part] for x in found), exact, tolerance=1e-4)  # type: ignore[arg-type]
    assert torch.equal(found[0][:, :, -1], tensors[2][:, :, -1])  # alone in its document


@pytest.mark.parametrize("times", [1, 3])
def test_attention_that_is_not_causal_is_balanced_too(times: int) -> None:
    """PyTorch 141429: lengths of 64 m, head size 64, one head, 2 ranks."""
    check(*results("ring", 2, seq_len=64 * times, heads=1, head_dim=64, mask="full"))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("length", [8, 16])
def test_causal_attention_on_processors(batch: int, heads: int, length: int) -> None:
    """PyTorch 147793, 177583."""
    check(*results("ring", 2, seq_len=length, batch=batch, heads=heads))


@pytest.mark.parametrize("strategy", ["ring", "charm", "ulysses", "mesh", "pass_q"])
def test_a_rank_may_hold_nothing_but_padding(strategy: str) -> None:
    """Megatron-LM 1764: NaN in loss and gradients."""
    found, exact = results(
        strategy, 2, partition="contiguous", seq_len=16, mask=packed_mask([0, 8], 16)
    )
    check(found, exact)
    assert not any(result[:, :, 8:].any() for result in found)


@pytest.mark.parametrize("strategy", ["ring", "charm", "ulysses"])
def test_document_boundaries_are_kept(strategy: str) -> None:
    """axolotl 3608: 5 documents in 1024 tokens on 2 ranks were attended as one."""
    mask = packed_mask([0, 200, 410, 617, 900, 1024], 1024)
    found, exact = results(strategy, 2, seq_len=1024, mask=mask, dtype="fp32")
    check(found, exact, tolerance=1e-4)
    as_one, _ = results(strategy, 2, seq_len=1024, mask="causal", dtype="fp32")
    assert cases.errors(found, as_one)["out"] > 0.1


@pytest.mark.parametrize("strategy", ["ring", "ulysses", "usp", "charm"])
def test_a_window_is_kept(strategy: str) -> None:
    """accelerate 4177, TransformerEngine 3527: windows were replaced by causal, or dropped."""
    found, exact = results(strategy, 2, seq_len=40, mask="window:5")
    check(found, exact)
    causal, _ = results(strategy, 2, seq_len=40, mask="causal")
    assert cases.errors(found, causal)["out"] > 0.1


def test_sequences_of_a_batch_are_not_mixed() -> None:
    """DeepSpeed 5808: an exchange of heads scrambled a batch of integers on 2 ranks."""
    numbers = torch.arange(16, dtype=torch.float64).reshape(2, 2, 4, 1)
    zeros = torch.zeros_like(numbers)
    (out, *_), _ = results(
        "ulysses", 2, seq_len=4, batch=2, head_dim=1, mask="full", partition="contiguous",
        tensors=(zeros, zeros, numbers, zeros),
    )  # fmt: skip
    assert torch.equal(out, numbers.mean(2, keepdim=True).expand_as(numbers))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks"), [(7, 7, 4), (20, 20, 8), (28, 7, 2), (8, 2, 8), (8, 1, 8)]
)
@pytest.mark.parametrize("strategy", ["ulysses", "charm"])
def test_heads_that_ranks_do_not_divide(
    strategy: str, heads: int, kv_heads: int, ranks: int
) -> None:
    """DeepSpeed 6392, vllm-omni 5716, LlamaFactory 10794."""
    check(*results(strategy, ranks, seq_len=33, heads=heads, kv_heads=kv_heads, head_dim=4))


def test_fewer_heads_than_ranks_names_another_strategy() -> None:
    with pytest.raises(StrategyError, match=r"4 heads on 8 ranks; .* or usp, which needs fewer"):
        results("ulysses", 8, seq_len=32, heads=4)
    check(*results("usp", 8, seq_len=32, heads=4))


def test_heads_inside_and_a_ring_across_with_head_and_tail_shards() -> None:
    """long-context-attention 53: 8 ranks, 4 of them exchange heads, rings of 2."""
    check(*results("usp", 8, seq_len=64, heads=8, params={"degree": 4}))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
def test_gradients_have_the_dtype_of_the_inputs(dtype: str) -> None:
    """ring-flash-attention 22 and 87: dq came back as bf16 whatever went in."""
    found, _ = results("ring", 2, seq_len=16, dtype=dtype)
    assert {x.dtype for x in found} == {found[0].dtype}
    assert found[0].dtype == cases.DTYPES[dtype]


@pytest.mark.parametrize("partition", ["striped", "contiguous", "zigzag"])
def test_any_dealing_of_tokens_comes_back_in_order(partition: str) -> None:
    """PyTorch 152261: round-robin shards came back wrong."""
    check(*results("all_gather", 4, partition=partition, seq_len=131))


@pytest.mark.parametrize("mask", ["causal", "blocks:0:48x0:48c7", "blocks:5:20x10:30c,20:48x0:9"])
def test_bands_and_shifted_diagonals(mask: str) -> None:
    """MagiAttention 122: causal and band masks differed from those of one device."""
    check(*results("charm", 3, seq_len=48, mask=mask))


def test_two_ranks_send_to_each_other_in_both_directions() -> None:
    """Megatron-LM 1495: on 2 ranks next and previous are one, and messages were swapped."""
    for strategy in ("ring", "reverse_ring", "charm"):
        check(*results(strategy, 2, seq_len=30, mask="full"))
