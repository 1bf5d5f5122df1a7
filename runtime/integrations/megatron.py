"""Megatron-Core: ``core_attention`` of a self-attention layer.

Written against Megatron-Core 0.16: the protocols ``CoreAttention`` and ``CoreAttentionBuilder`` of
``megatron/core/transformer/attention.py``, ``AttnMaskType`` and ``PackedSeqParams``. Nothing of it
is imported here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor, nn

from charm_sched.errors import RuntimeFailure
from charm_sched.masks.mask import Mask
from charm_sched.partition import Rows, rows_of
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.autograd import TIMEOUT, attention
from charm_sched.runtime.calls import check_together
from charm_sched.runtime.checks import forward_of
from charm_sched.runtime.groups import Group
from charm_sched.runtime.integrations.binding import Binding
from charm_sched.runtime.rebinding import packed_mask
from charm_sched.runtime.sharding import partition_of

_CAUSAL = {"causal": True, "padding_causal": True, "no_mask": False, "padding": False}


def core_attention(
    plan: Schedule | Plan,
    *,
    group: Group = None,
    backend: str | None = None,
    timeout: float = TIMEOUT,
) -> type[CoreAttention]:
    """Give a class for ``SelfAttentionSubmodules(core_attention=...)``.

    Args:
        plan: For the heads of one tensor-parallel rank, and cut as Megatron cuts: zigzag, with a
            length that 2 x ranks divides; so each document where packed.
        group: The ranks of the plan; None means Megatron's context-parallel group.
        backend: See `charm_sched.runtime.attention`; so is ``timeout``.
        timeout: Seconds.
    """

    class Bound(CoreAttention):
        binding = Binding(plan=plan, group=group, backend=backend, timeout=timeout)

    return Bound


class CoreAttention(nn.Module):
    """The attention of a layer on ``[tokens, batch, heads, size]``; made by `core_attention`."""

    binding: ClassVar[Binding]

    def __init__(
        self,
        config: Any,  # noqa: ANN401
        layer_number: int,
        attn_mask_type: Any,  # noqa: ANN401
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,  # noqa: ANN401
        **others: Any,  # noqa: ANN401
    ) -> None:
        """Set a layer up.

        Raises:
            RuntimeFailure: The configuration asks for something that the plan does not do.
        """
        super().__init__()
        self._where = f"core_attention of layer {layer_number}"
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        unknown = [name for name, value in others.items() if value is not None]
        wrong = {
            "attention_type": (attention_type, "self"),
            "attention_dropout": (dropout, 0.0),
            "softmax_type": (getattr(config, "softmax_type", "vanilla"), "vanilla"),
            "context_parallel_size": (
                config.context_parallel_size, partition_of(self.binding.plan).num_ranks,
            ),
            "arguments that are not known": (unknown, []),
        }  # fmt: skip
        for name, (found, wanted) in wrong.items():
            if found != wanted:
                raise RuntimeFailure(f"{self._where}: {name}: expected {wanted}, found {found}")
        self._check_window(config)
        self._mask_type = attn_mask_type
        self._cut_fits = False  # of a sequence that is not packed, once that has been checked
        self._scale = softmax_scale
        own = self.binding.group
        self._group = getattr(pg_collection, "cp", None) if own is None else own

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,  # noqa: ANN401
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,  # noqa: ANN401
    ) -> Tensor:
        """Attend.

        Args:
            query: ``[tokens, batch, heads, size]``; ``[tokens, heads, size]`` where packed.
            key: So, with the KV heads.
            value: So.
            attention_mask: Of a causal or full mask, which the plan knows; not read.
            attn_mask_type: Overrides the layer's.
            attention_bias: Must be None.
            packed_seq_params: Offsets of packed documents, of the whole sequence.

        Returns:
            ``[tokens, batch, heads * size]``; ``[tokens, heads, size]`` where packed.

        Raises:
            RuntimeFailure: Something is asked for that the plan does not do.
        """

        def check() -> None:
            self._check(attn_mask_type or self._mask_type, attention_bias, packed_seq_params)

        check_together(check, self._group, self.binding.timeout)
        packed = packed_seq_params is not None
        mask = self._packed(packed_seq_params) if packed else None
        order = (1, 2, 0, 3)
        if packed:
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        out = attention(
            *(x.permute(order) for x in (query, key, value)),
            plan=self.binding.plan, group=self._group, mask=mask, softmax_scale=self._scale,
            backend=self.binding.backend, timeout=self.binding.timeout,
        ).permute(2, 0, 1, 3)  # fmt: skip
        return out[:, 0].contiguous() if packed else out.flatten(2)

    def _check(self, kind: Any, bias: Tensor | None, packed: Any) -> None:  # noqa: ANN401
        if bias is not None:
            raise RuntimeFailure(f"{self._where}: attention_bias: expected None, found a tensor")
        self._check_mask(kind, packed=packed is not None)
        if packed is None:
            if not self._cut_fits:
                self._check_cut(None)
            self._cut_fits = True
            return
        if packed.qkv_format != "thd":
            raise RuntimeFailure(f"{self._where}: expected thd, found {packed.qkv_format}")
        rooms = packed.cu_seqlens_q_padded
        self._check_cut(packed.cu_seqlens_q if rooms is None else rooms)

    def _check_mask(self, kind: Any, *, packed: bool) -> None:  # noqa: ANN401
        name = getattr(kind, "name", str(kind))
        rule = forward_of(self.binding.plan).workload.mask_rule
        causal = rule.kind not in ("full", "docs-full")
        if _CAUSAL.get(name) != causal or ("padding" in name and not packed):
            raise RuntimeFailure(
                f"{self._where}: attn_mask_type {name} does not go with the plan's mask {rule}; "
                f"expected {'causal' if causal else 'no_mask'}, or padding with packed_seq_params"
            )

    def _check_window(self, config: Any) -> None:  # noqa: ANN401
        window = getattr(config, "window_size", None)
        if window is None:
            return
        rule = forward_of(self.binding.plan).workload.mask_rule
        every = getattr(config, "window_attn_skip_freq", None) is None
        before, after = window
        if not (every and after == 0 and rule.window == before + 1):
            raise RuntimeFailure(
                f"{self._where}: window_size {window}: expected a plan for the mask "
                f"window:{before + 1}, and the same window in all layers, found {rule}"
            )

    def _packed(self, given: Any) -> Mask:  # noqa: ANN401
        """Give the mask of packed documents."""
        rooms = given.cu_seqlens_q_padded
        seq_len = partition_of(self.binding.plan).seq_len
        rule = forward_of(self.binding.plan).workload.mask_rule
        causal = rule.kind not in ("full", "docs-full")
        return packed_mask(
            given.cu_seqlens_q, seq_len, padded=rooms, causal=causal, window=rule.window
        )

    def _check_cut(self, offsets: Tensor | None) -> None:
        """Refuse a plan whose shards are not those that Megatron gives the ranks.

        Raises:
            RuntimeFailure: They are others.
        """
        partition = partition_of(self.binding.plan)
        marks = [0, partition.seq_len] if offsets is None else offsets.tolist()
        cut = megatron_shards(marks, partition.num_ranks)
        if cut != partition.shards:
            raise RuntimeFailure(
                f"{self._where}: expected a plan with the shards that Megatron gives the ranks "
                f"(zigzag of the sequence, or of each packed document, in lengths that "
                f"{2 * partition.num_ranks} divides), found rank 0 with "
                f"{partition.shards[0][:4]}; Megatron's is {cut and cut[0][:4]}"
            )


def megatron_shards(offsets: list[int], ranks: int) -> tuple[Rows, ...] | None:
    """Give who owns which tokens: of each document a chunk from its head and one from its tail.

    >>> megatron_shards([0, 8], 2)
    (((0, 2), (6, 8)), ((2, 6),))

    Returns:
        The shards; None where a document's length does not divide into 2 x ranks chunks.
    """
    found: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for first, last in pairwise(offsets):
        chunk, rest = divmod(last - first, 2 * ranks)
        if rest:
            return None
        for rank, rows in enumerate(found):
            for part in (rank, 2 * ranks - 1 - rank):
                rows.append((first + part * chunk, first + (part + 1) * chunk))
    return tuple(rows_of(rows) for rows in found)
