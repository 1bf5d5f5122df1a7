"""charm-topo probe on a shaped network that is not as the file says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from charm_sched import topo
from charm_sched.testbed import missing
from charm_sched.topology.graph import load_topology

pytest.importorskip("torch")

REASON = missing()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]

FILE = """
schema: charm-sched/topology
version: 1
name: two_sockets
profiles:
  gpu: {{peak: {{bf16: 1 TFLOP/s}}, efficiency: 0.5, overhead: 0 s, memory_bandwidth: 1 TB/s}}
kinds: {{pcie: {{bandwidth: 40 MB/s, latency: 1 us}}}}
devices: [{{name: gpu0..3, profile: gpu}}]
switches: [{{name: root0..1, kind: root_complex}}]
links:
  - {{from: gpu0..1, to: root0, kind: pcie}}
  - {{from: gpu2, to: root1, kind: pcie}}
  - {{from: gpu3, to: root1, kind: pcie, bandwidth: {card}}}
  - {{from: root0, to: root1, kind: upi, bandwidth: {upi}, latency: 1 us}}
"""


def test_what_the_file_has_wrong_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link between the sockets has half of what the file says, one card a quarter."""
    monkeypatch.delenv("RANK", raising=False)
    stated, real, target = (tmp_path / f"{name}.yaml" for name in ("stated", "real", "new"))
    stated.write_text(FILE.format(card="40 MB/s", upi="40 MB/s"))
    real.write_text(FILE.format(card="10 MB/s", upi="20 MB/s"))
    status = topo.main(
        ["probe", str(stated), "--network", str(real), "--scale", "1", "--largest", "512 KiB",
         "--repeat", "3", "--json", "-o", str(target)]
    )  # fmt: skip
    assert status == 0
    document = json.loads(capsys.readouterr().out)
    named = {(each["what"].partition(" (")[0], each["number"]): each
             for each in document["differences"]}  # fmt: skip
    upi, card = named["upi", "bandwidth"], named["gpu3's pcie", "slow"]
    assert upi["measured"] == pytest.approx(20e6, rel=0.2)
    assert "the file says 40 MB/s" in upi["text"]
    assert card["measured"] == pytest.approx(10e6, rel=0.2)
    new = load_topology(target)
    for link in new.links:
        expected = 20e6 if link.kind == "upi" else 10e6 if "gpu3" in (link.src, link.dst) else 40e6
        assert link.bandwidth == pytest.approx(expected, rel=0.25), link
    assert "gloo on a shaped network at scale 1, 4 ranks" in target.read_text()
