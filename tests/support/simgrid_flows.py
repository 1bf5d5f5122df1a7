"""Flows in SimGrid, run by an interpreter that has it: JSON on stdin, JSON on stdout.

In: ``links``, bytes per second of each; ``flows``, each with a ``route`` (links by number), a
``size`` in bytes and, if no other flow is between them, its two ``ends``; ``latency``, seconds.
Every flow starts at 0 and has the same latency, as SimGrid would weigh flows by latency. Out:
``ends``, the second in which each flow ends (with very many flows, in which the last does), and
``seconds`` that SimGrid ran.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

MOST_ACTORS = 1000  # each is a thread
FLAGS = (
    "network/model:CM02",
    "network/TCP-gamma:0",
    "network/crosstraffic:0",
    "network/optim:Full",
    "maxmin/precision:1e-9",
    "surf/precision:1e-12",
)


def run(document: dict[str, Any]) -> dict[str, Any]:
    """Simulate the flows of a document."""
    from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone

    engine = Engine(["flows", *(f"--cfg={flag}" for flag in FLAGS), "--log=root.thres:error"])
    zone = NetZone.create_full_zone("root")
    links = [zone.create_link(f"l{i}", width).seal() for i, width in enumerate(document["links"])]
    delay = zone.create_link("delay", 1e30)
    delay.set_latency(document["latency"])
    delay.seal()
    known: dict[str, Any] = {}
    hosts = []
    for i, flow in enumerate(document["flows"]):
        names = [str(end) for end in flow.get("ends", (f"s{i}", f"d{i}"))]
        for name in names:
            if name not in known:
                known[name] = zone.create_host(name, 1e9).seal()
        src, dst = (known[name] for name in names)
        route = [LinkInRoute(delay), *(LinkInRoute(links[n]) for n in flow["route"])]
        zone.add_route(src.netpoint, dst.netpoint, None, None, route, False)
        hosts.append((src, dst))
    zone.seal()
    ends = [0.0] * len(hosts)

    def send(i: int) -> None:
        Comm.sendto(*hosts[i], document["flows"][i]["size"])
        ends[i] = Engine.clock

    def send_all() -> None:
        pairs = zip(hosts, document["flows"], strict=True)
        Comm.wait_all([Comm.sendto_async(*ends_of, flow["size"]) for ends_of, flow in pairs])
        ends[:] = [Engine.clock]

    if len(hosts) > MOST_ACTORS:
        Actor.create("all", hosts[0][0], send_all)
    else:
        for i, (src, _) in enumerate(hosts):
            Actor.create(f"flow{i}", src, send, i)
    begin = time.perf_counter()
    engine.run()
    return {"ends": ends, "seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    json.dump(run(json.load(sys.stdin)), sys.stdout)
