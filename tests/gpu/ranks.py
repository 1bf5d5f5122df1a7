"""Run under torchrun, a process per device: every strategy against dense attention, over NCCL."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))
import attention_cases as cases
from support.cases import ranks_for

from charm_sched.planners import PLANNERS
from charm_sched.runtime import attention, shard, unshard
from charm_sched.runtime.trial import Yardstick, draw_tensors
from charm_sched.workload import Workload


def main() -> None:
    """Print a line per strategy on rank 0."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    ranks = dist.get_world_size()
    for name in PLANNERS:
        if ranks_for(name, ranks) != ranks:
            continue
        work = Workload(seq_len=512, heads=8, kv_heads=2, head_dim=64, dtype="bf16")
        schedule = cases.make_schedule(name, work, "zigzag", ranks)
        whole = draw_tensors(work, 0)
        q, k, v, dout = (shard(x, schedule).to(device) for x in whole)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        for _ in range(3):  # the second and third pass use what the first one made
            out = attention(*inputs, plan=schedule, timeout=60)
            gradients = torch.autograd.grad(out, inputs, dout)
        found = [unshard(x.detach().cpu(), schedule) for x in (out, *gradients)]
        if dist.get_rank() == 0:
            wrong, exact = Yardstick(work).compare(whole, found)
            print(name, "exact" if all(exact.values()) else "WRONG", wrong, flush=True)  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
