"""Another mask under a plan: the transfers stay, the work of the attends changes.

A plan that was proved for one mask serves every mask that shows no more than its attends compute.
Where that follows from the two masks alone, it costs next to nothing, so a mask may change with
every batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from charm_sched.errors import PlanError, RuntimeFailure
from charm_sched.masks.mask import Mask, parse_mask
from charm_sched.masks.segments import Segment
from charm_sched.plans.plan import Plan
from charm_sched.proof.verifier import check_coverage

Offsets = Tensor | Sequence[int]


def rebound_plan(plan: Plan, mask: Mask, *, check: bool) -> Plan:
    """Give a plan under another mask.

    Args:
        plan: A proved plan.
        mask: The other mask.
        check: Whether to prove that the plan computes all that it shows.

    Raises:
        PlanError: It shows what the plan does not compute.
        WorkloadError: It does not fit the sequence.
    """
    rebound = plan.rebind(mask)
    if not check or shows_no_more(mask, plan.workload.mask_rule, plan.workload.seq_len):
        return rebound
    try:
        check_coverage(rebound)
    except PlanError as error:
        raise PlanError(
            f"mask: this {plan.direction} plan of {plan.strategy} was made for the mask "
            f"{_short(plan.workload.mask_rule)} and cannot serve {_short(mask)}: {error}; plan "
            f"with a mask that shows all that any batch needs (causal for causal ones, full for "
            f"others; every strategy takes both), or plan this mask itself"
        ) from error
    return rebound


def shows_no_more(mask: Mask, other: Mask, seq_len: int) -> bool:
    """Say whether a mask certainly shows nothing that another hides, from the two alone."""
    if mask == other or other.kind == "full":
        return True
    if other.kind not in ("causal", "window"):
        return False
    if other.kind == "causal" and mask.kind in ("window", "docs"):
        return True
    (whole,) = other.segments(seq_len)
    return all(_inside(segment, whole) for segment in mask.segments(seq_len))


def _inside(segment: Segment, other: Segment) -> bool:
    """Compare limits at both ends of the rows; they are straight lines between."""
    return all(
        segment.upper(row) <= other.upper(row)
        and max(segment.lower(row), 0) >= max(other.lower(row), 0)
        for row in (segment.first, segment.last - 1)
    )


def packed_mask(
    cu_seqlens: Offsets,
    seq_len: int,
    *,
    padded: Offsets | None = None,
    causal: bool = True,
    window: int | None = None,
) -> Mask:
    """Give the mask of packed documents from the offsets that kernels take.

    Make it once per batch and give it to every layer.

    Args:
        cu_seqlens: ``[documents + 1]``, where each document starts among the valid tokens and
            where the last one ends; a tensor, an array or a list. Documents may be empty.
        seq_len: Tokens in the sequence, on all ranks together. Those behind the last document are
            padding: they see nothing, nobody sees them, their output and gradients are 0.
        padded: Where each document starts in the sequence, and where the room of the last one
            ends, if there is padding between documents.
        causal: Whether a token sees what is before it alone.
        window: Tokens that a token sees at most, itself included; for causal documents.

    Raises:
        WorkloadError: The offsets do not start at 0, decrease, or do not fit the sequence.
        RuntimeFailure: They are no whole numbers, or on a device.
    """
    offsets = _listed(cu_seqlens, "cu_seqlens")
    rooms = None if padded is None else _listed(padded, "padded")
    return Mask.packed(offsets, seq_len, padded=rooms, causal=causal, window=window)


def chosen_mask(mask: Mask | str | None, cu_seqlens: Offsets | None, plan: Plan) -> Mask | None:
    """Give the mask of a call that is not the plan's own; None where it is.

    ``cu_seqlens`` alone means causal documents where the plan's mask is causal, two-way ones where
    it is two-way.

    Raises:
        RuntimeFailure: Both are given, or no mask.
        WorkloadError: The mask does not fit the sequence.
    """
    own, seq_len = plan.workload.mask_rule, plan.workload.seq_len
    if cu_seqlens is not None:
        if mask is not None:
            raise RuntimeFailure("attention: expected mask or cu_seqlens, found both")
        causal = own.kind not in ("full", "docs-full")
        window = own.window
        mask = packed_mask(cu_seqlens, seq_len, causal=causal, window=window)
    if isinstance(mask, str):
        mask = parse_mask(mask)
    found: object = mask
    if not (found is None or isinstance(found, Mask)):
        raise RuntimeFailure(
            f"attention: mask: expected a Mask or its text form, found {type(found).__name__}"
        )
    if mask is None or mask == own:
        return None
    mask.check_length(seq_len)
    return mask


def _listed(offsets: Offsets, name: str) -> list[int]:
    values = offsets
    if isinstance(values, Tensor):
        if values.device.type == "meta" or values.is_floating_point() or values.dim() != 1:
            raise RuntimeFailure(
                f"{name}: expected whole numbers [documents + 1], found {values.dtype} "
                f"{list(values.shape)} on {values.device}"
            )
        values = values.tolist()
    found: list[object] = list(values)
    if not all(isinstance(value, int) or _is_whole(value) for value in found):
        raise RuntimeFailure(f"{name}: expected whole numbers, found {found[:8]}")
    return [int(value) for value in values]


def _is_whole(value: object) -> bool:
    """Say whether a NumPy number is whole."""
    return getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u")


def _short(mask: Mask, longest: int = 60) -> str:
    text = str(mask)
    return text if len(text) <= longest else f"{text[:longest]}..."
