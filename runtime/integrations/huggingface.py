"""Transformers: ``attn_implementation="charm"``.

Written against Transformers 5.24: the functions ``AttentionInterface.register`` and
``AttentionMaskInterface.register`` ("attention_interface" in its documentation), and the arguments
that its models hand to an attention function.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from charm_sched.errors import RuntimeFailure
from charm_sched.masks.mask import Mask, parse_mask
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.autograd import TIMEOUT, attention
from charm_sched.runtime.batches import LocalBatch
from charm_sched.runtime.calls import check_together
from charm_sched.runtime.checks import forward_of
from charm_sched.runtime.groups import Group, process_group
from charm_sched.runtime.integrations.binding import Binding
from charm_sched.runtime.rebinding import packed_mask
from charm_sched.runtime.sharding import partition_of, positions

NAME = "charm"
_BINDING = "charm_binding"  # the attribute of an attention module
_CHANGE_ATTENTION = (
    "softcap", "s_aux", "position_bias", "head_mask", "layer_head_mask", "output_attentions",
)  # fmt: skip
_TENSORS_BESIDE = (  # tensors that models hand on and that do not change attention
    "cu_seq_lens_k", "cache_position", "shift_labels", "num_items_in_batch",
)  # fmt: skip


def attach(
    model: nn.Module,
    plan: Schedule | Plan,
    *,
    group: Group = None,
    backend: str | None = None,
    timeout: float = TIMEOUT,
) -> None:
    """Let a model of Transformers compute its attention by a plan.

    Registers the attention function ``charm``, sets it as the model's, and binds its attention
    modules to the plan. Give the model batches from `shard_batch`, through `inputs`.

    Args:
        model: A ``PreTrainedModel`` whose attention goes through ``AttentionInterface``.
        plan: A schedule; a forward plan is enough where no gradient is needed.
        group: The ranks, in the plan's order; see `charm_sched.runtime.attention`.
        backend: See `charm_sched.runtime.attention`; so is ``timeout``.
        timeout: Seconds.

    Raises:
        RuntimeFailure: The model cannot take an attention function, or attends in chunks.
    """
    register()
    config: Any = getattr(model, "config", None)
    if getattr(config, "attention_chunk_size", None) is not None:
        raise RuntimeFailure(
            "attach: the model attends in chunks (attention_chunk_size), which it would not tell "
            "an attention function; use its own attention"
        )
    change: Any = getattr(model, "set_attn_implementation", None)
    if change is not None:
        change(NAME)
    bound = [module for module in model.modules() if hasattr(module, "is_causal")]
    if getattr(config, "_attn_implementation", None) != NAME or not bound:
        raise RuntimeFailure(
            f"attach: {type(model).__name__} does not take attention functions "
            f"(AttentionInterface), so its attention cannot be replaced"
        )
    binding = Binding(plan=plan, group=process_group(group), backend=backend, timeout=timeout)
    for module in bound:
        setattr(module, _BINDING, binding)


def register() -> None:
    """Register the attention function and the mask function ``charm`` with Transformers.

    Raises:
        RuntimeFailure: It is not installed, or older than these interfaces.
    """
    try:
        transformers = importlib.import_module("transformers")
        attention_interface = transformers.AttentionInterface
        mask_interface = transformers.AttentionMaskInterface
    except (ImportError, AttributeError) as problem:
        raise RuntimeFailure(
            f"charm attention: expected Transformers 5 or later ({problem}); "
            f"pip install 'charm-sched[huggingface]'"
        ) from problem
    attention_interface.register(NAME, attend)
    mask_interface.register(NAME, make_no_mask)


def inputs(batch: LocalBatch) -> dict[str, Any]:
    """Give what a causal language model of Transformers is called with.

    The loss that it returns is this rank's part: the sum over its tokens, divided by the labels of
    the whole batch. Neither it nor gradients need to be scaled by the number of ranks: sum them.
    """
    given = {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "labels": batch.labels,
        "shift_labels": batch.labels,
        "num_items_in_batch": batch.num_items,
        "use_cache": False,
    }
    return given if batch.cu_seqlens is None else given | {"cu_seq_lens_q": batch.cu_seqlens}


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    position_ids: Tensor | None = None,
    **others: Any,  # noqa: ANN401
) -> tuple[Tensor, None]:
    """Attend as a module of Transformers asks for it.

    Args:
        module: The attention module.
        query: ``[batch, heads, tokens, head_dim]``.
        key: ``[batch, kv_heads, tokens, head_dim]``.
        value: ``[batch, kv_heads, tokens, v_head_dim]``.
        attention_mask: Must be None.
        scaling: The softmax scale.
        dropout: Must be 0.
        is_causal: Overrides the module's.
        sliding_window: Tokens that a token sees.
        cu_seq_lens_q: Offsets of packed documents, of the whole sequence.
        position_ids: This rank's positions.
        others: What the model hands on.

    Returns:
        ``[batch, tokens, heads, v_head_dim]``, and None for the weights.

    Raises:
        RuntimeFailure: Something is asked for that the plan does not do.
    """
    binding: Binding | None = getattr(module, _BINDING, None)
    if binding is None:
        raise RuntimeFailure(
            f"attention of {type(module).__name__}: no plan is attached; call "
            f"charm_sched.runtime.integrations.huggingface.attach(model, plan)"
        )
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)

    def check() -> None:
        _check(binding, causal, attention_mask, others)
        if position_ids is not None and getattr(module, "layer_idx", 0) == 0:
            _check_positions(binding, position_ids, cu_seq_lens_q)

    check_together(check, binding.group, binding.timeout)
    options: dict[str, Any] = {"cu_seqlens": cu_seq_lens_q}
    if sliding_window is not None:
        options = {"mask": _window(binding, sliding_window, cu_seq_lens_q)}
    out = attention(
        query, key, value, plan=binding.plan, group=binding.group, softmax_scale=scaling,
        dropout_p=dropout, backend=binding.backend, timeout=binding.timeout, **options,
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


def make_no_mask(
    *,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    **others: Any,  # noqa: ANN401
) -> None:
    """Take the place of a mask: who sees whom is in the plan.

    Raises:
        RuntimeFailure: The model asks for a mask that it makes itself, or has cached keys.
    """
    if attention_mask is not None and not bool(attention_mask.all()):
        raise RuntimeFailure(
            "charm attention: attention_mask: expected None or all ones, found padding; pack "
            "documents into one row (cu_seqlens of shard_batch; tokens behind the last are padding)"
        )
    if use_vmap:
        raise RuntimeFailure(
            "charm attention: the model makes a mask function of its own, which a plan does not "
            "know; give the mask to the plan, or use the model's own attention"
        )
    if q_length != kv_length:
        raise RuntimeFailure(
            f"charm attention: {q_length} queries on {kv_length} keys: expected the same, as a "
            f"plan has no cache of keys; call the model with use_cache=False"
        )


def _check(
    binding: Binding, causal: bool, attention_mask: Tensor | None, others: dict[str, Any]
) -> None:
    if attention_mask is not None:
        raise RuntimeFailure(
            "charm attention: attention_mask: expected None, found a tensor; who sees whom is the "
            "plan's mask, or cu_seqlens of shard_batch"
        )
    unknown = [
        name
        for name, given in others.items()
        if (name in _CHANGE_ATTENTION and given is not None and given is not False)
        or (isinstance(given, Tensor) and name not in _TENSORS_BESIDE)
    ]
    if unknown:
        raise RuntimeFailure(
            f"charm attention: the model asks for {', '.join(unknown)}, which no plan does; use "
            f"its own attention"
        )
    rule = forward_of(binding.plan).workload.mask_rule
    if causal == (rule.kind in ("full", "docs-full")):
        kind = "causal" if causal else "two-way"
        raise RuntimeFailure(
            f"charm attention: the model's attention is {kind}, the plan's mask is {rule}; plan "
            f"for the model's mask"
        )


def _window(binding: Binding, window: int, cu_seqlens: Tensor | None) -> Mask:
    seq_len = partition_of(binding.plan).seq_len
    if cu_seqlens is None:
        return parse_mask(f"window:{min(window, seq_len)}")
    return packed_mask(cu_seqlens, seq_len, window=window)


def _check_positions(binding: Binding, found: Tensor, cu_seqlens: Tensor | None) -> None:
    """Refuse positions that are not those of this rank's tokens; once per model call."""
    if torch.compiler.is_compiling():
        return
    plan, seq_len = binding.plan, partition_of(binding.plan).seq_len
    rules = [None, parse_mask("full")]
    if cu_seqlens is not None:
        rules = [packed_mask(cu_seqlens, seq_len), parse_mask("full")]
    for rule in rules:
        own = positions(plan, mask=rule, group=binding.group).to(found.device)
        if found.shape[-1:] == own.shape and bool((found == own).all()):
            return
    wanted = positions(plan, mask=rules[0], group=binding.group).to(found.device)
    rows = found.expand(1, -1) if found.dim() == 1 else found
    first = 0
    if rows.shape[1] == len(wanted):
        first = int((rows != wanted).any(0).nonzero()[0])
    raise RuntimeFailure(
        f"charm attention: position_ids: expected those of this rank's {len(wanted)} tokens, from "
        f"number {first} on {wanted[first : first + 8].tolist()}, found {rows.shape[1]}, "
        f"{rows[0, first : first + 8].tolist()}; make the batch with "
        f"charm_sched.runtime.shard_batch"
    )
