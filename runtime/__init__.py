"""Runtime: plan + tensors -> tensors on torch.distributed."""

if __name__ != "charm_sched.runtime":
    raise ImportError(
        f"import charm_sched.runtime, not {__name__}: this folder is reached as part of charm_sched"
    )

from charm_sched.runtime.autograd import attention
from charm_sched.runtime.rebinding import packed_mask
from charm_sched.runtime.sharding import positions, shard, unshard

__all__ = ["attention", "packed_mask", "positions", "shard", "unshard"]
