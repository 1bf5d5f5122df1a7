"""torchtitan: the ``inner_attention`` of its attention modules.

Written against torchtitan 0.3: what ``GQAttention`` of ``torchtitan/models/common/attention.py``
calls its ``inner_attention`` with. Nothing of it is imported here.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from charm_sched.errors import RuntimeFailure
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.autograd import TIMEOUT, attention
from charm_sched.runtime.calls import check_together
from charm_sched.runtime.checks import forward_of
from charm_sched.runtime.groups import Group
from charm_sched.runtime.rebinding import Offsets


def replace_inner_attention(
    model: nn.Module,
    plan: Schedule | Plan,
    *,
    group: Group = None,
    backend: str | None = None,
    timeout: float = TIMEOUT,
) -> int:
    """Let the attention modules of a model compute by a plan; call it before FSDP and compile.

    Leave torchtitan's own context parallelism off (``context_parallel_degree = 1``), cut batches
    with `charm_sched.runtime.shard_batch` and give the model its positions.

    Args:
        model: A model whose attention modules have an ``inner_attention``.
        plan: For the heads of one tensor-parallel rank.
        group: The ranks of the plan; see `charm_sched.runtime.attention`.
        backend: See `charm_sched.runtime.attention`; so is ``timeout``.
        timeout: Seconds.

    Returns:
        How many modules were changed.

    Raises:
        RuntimeFailure: The model has none.
    """
    holders = [module for module in model.modules() if hasattr(module, "inner_attention")]
    if not holders:
        raise RuntimeFailure(
            f"replace_inner_attention: no module of {type(model).__name__} has an inner_attention"
        )
    for holder in holders:
        inner = InnerAttention(plan, group=group, backend=backend, timeout=timeout)
        holder.inner_attention = inner
    return len(holders)


class InnerAttention(nn.Module):
    """Attention on ``[batch, tokens, heads, size]``.

    Attributes:
        cu_seqlens: Offsets of the batch's packed documents; set it before the model is called.
    """

    def __init__(
        self,
        plan: Schedule | Plan,
        *,
        group: Group = None,
        backend: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__()
        self.cu_seqlens: Offsets | None = None
        self._plan = plan
        self._options: dict[str, Any] = {"group": group, "backend": backend, "timeout": timeout}
        self._causal = forward_of(plan).workload.mask_rule.kind not in ("full", "docs-full")

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        attention_masks: object = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        is_causal: bool = True,
        **others: object,
    ) -> Tensor:
        """Attend.

        Args:
            q: ``[batch, tokens, heads, size]``.
            k: So, with the KV heads.
            v: So.
            attention_masks: Must be None.
            scale: The softmax scale.
            enable_gqa: Whether fewer KV heads are meant.
            is_causal: Must be as the plan's mask.
            others: Must be None.

        Returns:
            ``[batch, tokens, heads, size]``.

        Raises:
            RuntimeFailure: Something is asked for that the plan does not do.
        """

        def check() -> None:
            self._check(q, k, attention_masks, enable_gqa, is_causal, others)

        check_together(check, self._options["group"], self._options["timeout"])
        turned = (x.transpose(1, 2) for x in (q, k, v))
        out = attention(
            *turned, plan=self._plan, softmax_scale=scale, cu_seqlens=self.cu_seqlens,
            **self._options,
        )  # fmt: skip
        return out.transpose(1, 2)

    def _check(
        self,
        q: Tensor,
        k: Tensor,
        attention_masks: object,
        enable_gqa: bool,
        is_causal: bool,
        others: dict[str, object],
    ) -> None:
        asked = [name for name, given in others.items() if given is not None]
        if attention_masks is not None:
            asked.append("attention_masks")
        if asked:
            raise RuntimeFailure(
                f"inner_attention: {', '.join(asked)}: expected None: who sees whom is the plan's "
                f"mask, or cu_seqlens of the inner attention"
            )
        if is_causal != self._causal:
            raise RuntimeFailure(
                f"inner_attention: is_causal: expected {self._causal}, as the plan's mask is "
                f"{forward_of(self._plan).workload.mask_rule}, found {is_causal}"
            )
        if q.shape[2] != k.shape[2] and not enable_gqa:
            raise RuntimeFailure("inner_attention: fewer KV heads, but enable_gqa is False")
