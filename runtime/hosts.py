"""Work that one rank of each host does, and that rank 0 gets the results of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch.distributed as dist

from charm_sched.errors import CharmSchedError, RuntimeFailure


class _Identity(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str: ...


Result = TypeVar("Result")


def once_per_host(identity: _Identity, work: Callable[[], Result]) -> list[Result] | None:
    """Do some work on the lowest rank of each host and container; all ranks must call.

    Args:
        identity: Of this rank's host, comparable; ranks with equal ones share a host.
        work: What the lowest rank there does. Others get its result counted as theirs.

    Returns:
        On rank 0 one result for each rank, elsewhere None.

    Raises:
        RuntimeFailure: The work failed on some host; on rank 0, with the host's name.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    identities: list[_Identity | None] = [None] * size
    dist.all_gather_object(identities, identity)
    leaders = [identities.index(each) for each in identities]
    result: Result | None = None
    problem = ""
    if leaders[rank] == rank:
        try:
            result = work()
        except (CharmSchedError, OSError) as error:
            problem = f"{identity.name}: {error}"
    found: list[tuple[Result | None, str] | None] | None = [None] * size if rank == 0 else None
    dist.gather_object((result, problem), found, dst=0)
    if found is None:
        return None
    told = [each for each in found if each is not None]
    problems = [text for _, text in told if text]
    if problems:
        raise RuntimeFailure("; ".join(dict.fromkeys(problems)))
    results = [told[leader][0] for leader in leaders]
    return [each for each in results if each is not None]
