"""Runtime: plan + tensors -> tensors on torch.distributed."""

if __name__ != "charm_sched.runtime":
    raise ImportError(
        f"import charm_sched.runtime, not {__name__}: this folder is reached as part of charm_sched"
    )

from charm_sched.runtime.autograd import attention
from charm_sched.runtime.batches import LocalBatch, shard_batch
from charm_sched.runtime.context import context_parallel
from charm_sched.runtime.rebinding import packed_mask
from charm_sched.runtime.sharding import positions, shard, unshard

__all__ = [
    "LocalBatch",
    "attention",
    "context_parallel",
    "packed_mask",
    "positions",
    "shard",
    "shard_batch",
    "unshard",
]
