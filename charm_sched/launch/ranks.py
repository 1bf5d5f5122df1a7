"""The order of ranks, as launchers read it: Open MPI's hostfile and rankfile, Slurm's hostfile.

Sources: orte_hosts(7) and mpirun(1) of Open MPI; srun(1) of Slurm, --distribution=arbitrary.
"""

from __future__ import annotations

from collections.abc import Sequence

from charm_sched.errors import TopologyError
from charm_sched.launch.hosts import Host


def hostfile(hosts: Sequence[Host], numbers: Sequence[Sequence[int]]) -> str:
    """Return hosts with their slots, and above each how torchrun is started there.

    Raises:
        TopologyError: The ranks of a host are not consecutive, or hosts have unequal numbers.
    """
    lines = [
        "# Hosts in rank order: mpirun --hostfile THIS ..., or torchrun on each host as it says."
    ]
    together = all(h.ranks == tuple(range(h.ranks[0], h.ranks[-1] + 1)) for h in hosts)
    if not together:
        raise TopologyError(
            "expected consecutive ranks on each host, as torchrun and a hostfile have them, found "
            "others (--format slurm and rankfile can say any order; charm-topo place finds one "
            "that goes host by host)"
        )
    if len({len(host.ranks) for host in hosts}) > 1:
        lines.append("# torchrun's --nproc-per-node differs from host to host, as given below")
    for number, (host, own) in enumerate(zip(hosts, numbers, strict=True)):
        visible = ",".join(map(str, own))
        lines.append(
            f"# {host.name}: CUDA_VISIBLE_DEVICES={visible} torchrun --nnodes {len(hosts)} "
            f"--node-rank {number} --nproc-per-node {len(host.ranks)} "
            f"--master-addr {hosts[0].name} --master-port 29500 ..."
        )
        lines.append(f"{host.name} slots={len(host.ranks)}")
    return "\n".join(lines) + "\n"


def rankfile(hosts: Sequence[Host]) -> str:
    """Return one line for each rank; slots are numbered on each host, from 0."""
    where = {
        rank: (host.name, slot) for host in hosts for slot, rank in enumerate(host.ranks)
    }  # fmt: skip
    lines = [f"rank {rank}={name} slot={slot}" for rank, (name, slot) in sorted(where.items())]
    return "\n".join(lines) + "\n"


def slurm_hostfile(hosts: Sequence[Host]) -> str:
    """Return the host of each task, one in each line, for SLURM_HOSTFILE."""
    where = {rank: host.name for host in hosts for rank in host.ranks}
    return "".join(f"{name}\n" for _, name in sorted(where.items()))
