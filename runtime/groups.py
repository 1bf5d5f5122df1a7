"""The ranks of a plan, as users name them: a process group, or one dimension of a device mesh."""

from __future__ import annotations

from typing import TypeAlias

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from charm_sched.errors import RuntimeFailure

Group: TypeAlias = "dist.ProcessGroup | DeviceMesh | None"


def process_group(group: Group) -> dist.ProcessGroup | None:
    """Give the process group of a mesh of one dimension; others as they are.

    Raises:
        RuntimeFailure: The mesh has several dimensions.
    """
    if not isinstance(group, DeviceMesh):
        return group
    if group.ndim != 1:
        names = group.mesh_dim_names or tuple(map(str, range(group.ndim)))
        raise RuntimeFailure(
            f"group: expected one dimension of the mesh, found {', '.join(names)}; "
            f"name it, as in mesh[{names[-1]!r}]"
        )
    return group.get_group()
