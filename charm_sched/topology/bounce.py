"""Where bytes go when some devices have no peer access: through the memory of a host.

A switch passes bytes on, but not from one such device straight to another. So each switch is there
three times: for bytes that come from a device without peer access, for those of other devices, and
for those that have been in the memory of a host. Memories lead from the first two to the third.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from charm_sched.topology.graph import HOST_MEMORY


def bounced_arcs(
    arcs: Mapping[tuple[int, int], float], kinds: Sequence[str], peers: Sequence[bool]
) -> tuple[dict[tuple[int, int], float], int]:
    """Return the arcs over switches in layers, and how many vertices there are then.

    A link that several layers use has its whole bandwidth in each, so that flows come out no
    smaller than they are.

    Args:
        arcs: Bytes per second by (tail, head); devices are the first vertices, then switches.
        kinds: Of the vertices; "" for devices.
        peers: Whether each device has peer access.
    """
    devices, size = len(peers), len(kinds)
    switches = size - devices
    # Layer 0 has the vertices as they are, and memories, which belong to all.
    made: dict[tuple[int, int], float] = {}

    def at(vertex: int, layer: int) -> int:
        shared = vertex < devices or kinds[vertex] == HOST_MEMORY
        return vertex if shared else vertex + layer * switches

    for (tail, head), rate in arcs.items():
        if tail < devices and head < devices:
            made[tail, head] = rate
            continue
        for layer in range(3):
            if tail < devices and layer != int(peers[tail]):
                continue
            if tail >= devices and kinds[tail] == HOST_MEMORY and layer != _STORED:
                continue
            if head < devices and layer < (_DIRECT if peers[head] else _STORED):
                continue
            made[at(tail, layer), at(head, layer)] = rate
    return made, size + 2 * switches


_DIRECT, _STORED = 1, 2  # layers of devices with peer access, and of bytes from a memory

__all__ = ["bounced_arcs"]
