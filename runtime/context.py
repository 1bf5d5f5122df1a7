"""Context parallelism for a model as it is: attention calls inside a ``with`` become distributed.

The counterpart of ``torch.distributed.tensor.experimental.context_parallel``, for the plans of this
package. The name in ``torch.nn.functional`` is replaced, which reaches calls from within torch and
from a backward that computes activations again; a torch function mode beside it reaches models that
imported the function under a name of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode, get_overridable_functions

from charm_sched.errors import RuntimeFailure
from charm_sched.masks.mask import Mask
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.autograd import TIMEOUT, attention
from charm_sched.runtime.calls import check_together
from charm_sched.runtime.checks import forward_of
from charm_sched.runtime.groups import Group
from charm_sched.runtime.rebinding import Offsets
from charm_sched.runtime.sharding import shard

_TWO_WAY = ("full", "docs-full")
_TORCH_ATTENTION = F.scaled_dot_product_attention
_METHOD = Tensor.unflatten  # the compiler cannot follow its super() from within a mode (torch 2.13)


@contextmanager
def context_parallel(
    plan: Schedule | Plan,
    *,
    buffers: Sequence[Tensor] = (),
    buffer_seq_dims: Sequence[int] = (),
    no_restore_buffers: Sequence[Tensor] = (),
    group: Group = None,
    mask: Mask | str | None = None,
    cu_seqlens: Offsets | None = None,
    backend: str | None = None,
    timeout: float = TIMEOUT,
) -> Iterator[None]:
    """Run a model on this rank's tokens.

    Inside, ``buffers`` hold this rank's tokens, and each call of ``scaled_dot_product_attention``
    is `charm_sched.runtime.attention` over all ranks. The backward belongs inside, too, where it
    computes activations again.

    Args:
        plan: A schedule; a forward plan is enough where no gradient is needed.
        buffers: Whole tensors that are cut in place, the same on all ranks: tokens, labels,
            positions. They are whole again afterwards.
        buffer_seq_dims: The dimension of the tokens of each buffer.
        no_restore_buffers: Those of the buffers that may stay cut.
        group: The ranks, in the plan's order; see `attention`.
        mask: Another mask than the plan's; see `attention`.
        cu_seqlens: Offsets of packed documents; see `attention`.
        backend: See `attention`.
        timeout: See `attention`.

    Raises:
        RuntimeFailure: A buffer cannot be cut in place; or, from a call inside, attention was
            asked for something else than the plan does.
    """
    _check_buffers(buffers, buffer_seq_dims, no_restore_buffers)
    kept = [None if any(x is other for other in no_restore_buffers) else x.clone() for x in buffers]
    parts = [
        shard(x, plan, dim=dim, group=group)
        for x, dim in zip(buffers, buffer_seq_dims, strict=True)
    ]
    options = {
        "plan": plan, "group": group, "mask": mask, "cu_seqlens": cu_seqlens, "backend": backend,
        "timeout": timeout,
    }  # fmt: skip
    replacing = _Replacing(plan, mask, options)
    try:
        for buffer, part in zip(buffers, parts, strict=True):
            _put(buffer, part)
        with _renamed(replacing.attend), replacing:
            yield
    finally:
        for buffer, whole in zip(buffers, kept, strict=True):
            if whole is not None:
                _put(buffer, whole)


class _Replacing(TorchFunctionMode):
    """Hands calls of ``scaled_dot_product_attention`` to distributed attention."""

    def __init__(
        self, plan: Schedule | Plan, mask: Mask | str | None, options: dict[str, Any]
    ) -> None:
        super().__init__()
        own = forward_of(plan).workload.mask_rule
        self._two_way = str(mask or own).partition(":")[0] in _TWO_WAY
        self._options = options

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func is _METHOD:
            func = torch.unflatten
        if func is not _TORCH_ATTENTION:
            return func(*args, **(kwargs or {}))
        return self.attend(*args, **(kwargs or {}))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attend as ``scaled_dot_product_attention`` was asked to.

        Raises:
            RuntimeFailure: The plan does something else.
        """

        def check() -> None:
            self._check(query, key, attn_mask, is_causal, enable_gqa)

        check_together(check, self._options["group"], self._options["timeout"])
        return attention(
            query, key, value, softmax_scale=scale, dropout_p=dropout_p, **self._options
        )

    def _check(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        is_causal: bool,
        enable_gqa: bool,
    ) -> None:
        if attn_mask is not None:
            raise RuntimeFailure(
                "context_parallel: attn_mask: expected None, found a tensor: who sees whom is the "
                "plan's mask, or mask= or cu_seqlens= of context_parallel; ask for causal "
                "attention with is_causal"
            )
        if is_causal == self._two_way:
            rule = "two-way" if self._two_way else "causal"
            raise RuntimeFailure(
                f"context_parallel: is_causal: expected {not self._two_way}, as the mask is "
                f"{rule}, found {is_causal}; plan for the mask of the model"
            )
        if query.dim() != 4 or query.shape[2] != key.shape[2]:
            raise RuntimeFailure(
                f"context_parallel: expected self-attention on [batch, heads, tokens, size], "
                f"found {list(query.shape)} on {list(key.shape)}; call other attention outside"
            )
        if query.shape[1] != key.shape[1] and not enable_gqa:
            raise RuntimeFailure(
                f"context_parallel: {query.shape[1]} query heads on {key.shape[1]} KV heads: "
                f"expected enable_gqa=True"
            )


@contextmanager
def _renamed(attend: Callable[..., Tensor]) -> Iterator[None]:
    """Let ``torch.nn.functional`` hold another function.

    The compiler asks torch which functions a mode can catch. That list is made once, from the names
    in ``torch.nn.functional``: it is made before one of them changes.
    """
    get_overridable_functions()
    before = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        F.scaled_dot_product_attention = before


def _check_buffers(
    buffers: Sequence[Tensor], dims: Sequence[int], no_restore: Sequence[Tensor]
) -> None:
    if len(buffers) != len(dims):
        raise RuntimeFailure(
            f"context_parallel: buffer_seq_dims: expected one for each of the {len(buffers)} "
            f"buffers, found {len(dims)}"
        )
    for number, x in enumerate(buffers):
        where = f"context_parallel: buffer {number}"
        found: object = x
        if not isinstance(found, Tensor):
            raise RuntimeFailure(f"{where}: expected a tensor, found {type(found).__name__}")
        if x.requires_grad or x.grad_fn is not None:
            raise RuntimeFailure(
                f"{where}: expected a tensor without gradient, as it is changed in place; cut it "
                f"with charm_sched.runtime.shard"
            )
        if x._base is not None or not x.is_contiguous():
            raise RuntimeFailure(
                f"{where}: expected a tensor of its own, found a view, which cannot be cut in "
                f"place; give x.clone()"
            )
        if any(x.data_ptr() == other.data_ptr() for other in buffers[:number] if x.numel()):
            raise RuntimeFailure(f"{where}: the same memory is an earlier buffer, too")
    for x in no_restore:
        if not any(x is buffer for buffer in buffers):
            raise RuntimeFailure("context_parallel: no_restore_buffers: one is not in buffers")


def _put(buffer: Tensor, content: Tensor) -> None:
    with torch.no_grad():
        buffer.resize_(content.shape)
        buffer.copy_(content)
