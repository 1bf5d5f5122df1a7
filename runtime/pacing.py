"""Passes whose kernels take the time of a model instead of computing: all traffic, no arithmetic.

So eight or sixteen ranks fit on a machine with two cores, and what is measured is communication
and its overlap. Results mean nothing; nothing else about a pass differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from charm_sched.partition import count_rows
from charm_sched.plans.plan import Plan
from charm_sched.runtime.checks import checked_timeout
from charm_sched.runtime.kernels import Reference
from charm_sched.runtime.layout import Fields
from charm_sched.runtime.numerics import DTYPES
from charm_sched.runtime.passes import Worker, set_up_backward, set_up_forward
from charm_sched.runtime.recording import PassRecord
from charm_sched.runtime.session import Session, Settings

HEAD_START = 0.02  # seconds from the last agreement of the ranks to the start of a pass


def run_paced(
    session: Session,
    plan: Plan,
    seconds: Sequence[float],
    *,
    timeout: float,
    residents: Mapping[str, Fields] | None = None,
) -> tuple[PassRecord, Mapping[str, Fields]]:
    """Run a plan of either direction with modelled kernel times; all ranks must call.

    The plan is not proved here, so plans of transfers alone can be run too.

    Args:
        session: The ranks.
        plan: What is run.
        seconds: Time of each row's kernel.
        timeout: Seconds that a transfer may take.
        residents: Backward: what the forward kept.

    Returns:
        When this rank's steps started and ended, and what stays resident.

    Raises:
        RuntimeFailure: A step failed; rank, op and peer are named.
    """
    timeout = checked_timeout(timeout)

    def set_up() -> tuple[None, Settings]:
        session.prepared(plan, check=False)
        return None, {"pass": f"paced {plan.direction}", "plan": plan.digest}

    session.agree(set_up, timeout)
    with session.passing():
        worker, transport = session.worker(plan, timeout, check=False)
        record = PassRecord(plan, session.communicators, timeout, HEAD_START)
        kept: Mapping[str, Fields] = {}
        if plan.direction == "forward":
            forward = set_up_forward(
                worker, *_zeros(plan, session.rank)[:3], kernel=Reference(), scale=1.0,
                observer=record, pace=seconds,
            )  # fmt: skip
            record.wait()
            session.run(forward.execution, transport)
            _, _, kept = forward.result()
        else:
            q, k, v, dout = _zeros(plan, session.rank)
            lse = torch.zeros(q.shape[:3], dtype=_accumulate(worker))
            backward = set_up_backward(
                worker, (q, k, v, dout, lse, dout), kernel=Reference(), scale=1.0,
                residents=residents or {}, observer=record, pace=seconds,
            )  # fmt: skip
            record.wait()
            session.run(backward.execution, transport)
        return record, kept


def _accumulate(worker: Worker) -> torch.dtype:
    return worker.program.precision.accumulate


def _zeros(plan: Plan, rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give q, k, v and the gradient of the output of a rank's rows, all zero."""
    work, rows = plan.workload, count_rows(plan.partition.shards[rank])

    def zeros(heads: int, size: int) -> Tensor:
        return torch.zeros((work.batch, heads, rows, size), dtype=DTYPES[work.dtype])

    return (
        zeros(work.heads, work.head_dim),
        zeros(work.num_kv_heads, work.head_dim),
        zeros(work.num_kv_heads, work.value_dim),
        zeros(work.heads, work.value_dim),
    )
