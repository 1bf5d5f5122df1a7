"""Training that goes on after a restart: the state of all ranks in one checkpoint per step.

    torchrun --nproc-per-node 4 --max-restarts 3 docs/examples/torchrun/resume.py FOLDER STEPS

A rank that fails ends all ranks, each with a message; torchrun starts them again, and they go on
from the last checkpoint that is complete. Attention keeps no state between steps.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from charm_sched import Workload, load_topology, plan
from charm_sched.runtime import attention, shard

WORK = Workload(seq_len=96, heads=4, kv_heads=2, head_dim=8, dtype="fp32", mask="causal")


class Layer(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.q = torch.nn.Linear(size, WORK.heads * WORK.head_dim)
        self.k = torch.nn.Linear(size, WORK.kv_heads * WORK.head_dim)
        self.v = torch.nn.Linear(size, WORK.kv_heads * WORK.head_dim)
        self.out = torch.nn.Linear(WORK.heads * WORK.head_dim, size)

    def forward(self, x, schedule):
        heads = [f(x).unflatten(-1, (-1, WORK.head_dim)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        mixed = attention(*heads, plan=schedule, timeout=20)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


def join():
    """Connect the processes that torchrun started, or started again.

    PyTorch 2.13 keeps the store over a restart, so the addresses of the processes that ended are
    still in it; a prefix per attempt keeps them apart.
    """
    store, rank, ranks = next(dist.rendezvous("env://"))
    store = dist.PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


def latest(folder):
    """The last step whose checkpoint is complete: its metadata is written last."""
    steps = [int(path.parent.name) for path in folder.glob("*/.metadata")]
    return max(steps, default=0)


def main():
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights everywhere
    model = Layer(16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = plan(load_topology("dual_numa_pcie"), WORK, strategy="ring", ranks=ranks)
    done = latest(folder)
    if done:
        for group in optimizer.param_groups:  # AdamW makes its state in the first step
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        dcp.load(state, checkpoint_id=folder / str(done))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(done, steps):
        if (rank, step) == (1, 3) and "DIE_ONCE" in os.environ and not done:
            os._exit(9)  # what a broken machine looks like
        tokens = torch.randn(1, WORK.seq_len, 16, generator=torch.Generator().manual_seed(step))
        mine = shard(tokens[:, None], schedule)[:, 0]  # this rank's tokens
        loss = (model(mine, schedule) - mine.roll(1, -1)).square().sum() / tokens.numel()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        dist.all_reduce(loss.detach())
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        dcp.save(state, checkpoint_id=folder / str(step + 1))
        if rank == 0:
            print(f"step {step + 1}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
