from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machines import HEAD, link, parse, section

from charm_sched.errors import TopologyError
from charm_sched.topology.file import parse_topology
from charm_sched.topology.graph import Topology, load_topology, shipped_names
from charm_sched.topology.patterns import MAX_PARTS
from charm_sched.topology.yaml_tree import MAX_DEPTH

GOOD = """\
schema: charm-sched/topology
version: 1
name: box
description: Two devices.
tiers: [pcie]
profiles:
  card:
    peak: {bf16: 100 TFLOP/s, fp32: 10 TFLOP/s}
    efficiency: 0.5
    overhead: 5 us
    memory_bandwidth: 1 TB/s
    assumed: [overhead]
    source: {peak: datasheet, overhead: a margin}
    rates:
      - {direction: forward, head_dim: 128, causal: true, dtypes: [bf16], rate: 50 TFLOP/s}
kinds:
  pcie: {bandwidth: 24 GB/s, latency: 1 us, assumed: [latency], source: measured}
devices:
  - {name: gpu0..1, profile: card, memory: 80 GB}
switches:
  - {name: switch, kind: pcie_switch}
links:
  - {from: gpu0..1, to: switch, kind: pcie}
"""


def refuse(text: str, **more: str) -> str:
    """Give the one message with which a text is refused."""
    with pytest.raises(TopologyError) as caught:
        parse_topology(text, where=more.get("where", "box.yaml"))
    message = str(caught.value)
    assert caught.value.args == (message,)
    assert "\n" not in message
    return message


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, f"{old!r} is there {GOOD.count(old)} times"
    return GOOD.replace(old, new)


def test_a_good_file() -> None:
    topology = parse_topology(GOOD, where="box.yaml")
    assert topology.device_names == ("gpu0", "gpu1")
    assert [switch.name for switch in topology.switches] == ["switch"]
    first = topology.device("gpu0")
    assert (first.memory, first.port, first.compute.name) == (80e9, 24e9, "card")
    assert [(k.src, k.dst, k.bandwidth, k.latency) for k in topology.links] == [
        ("gpu0", "switch", 24e9, 1e-6),
        ("switch", "gpu0", 24e9, 1e-6),
        ("gpu1", "switch", 24e9, 1e-6),
        ("switch", "gpu1", 24e9, 1e-6),
    ]
    assert topology.links[0].assumed
    assert topology.links[0].source == "measured"
    assert topology.assumptions == (
        "card: efficiency 0.5 is assumed",
        "card: overhead 5 us is assumed (a margin)",
        "pcie links: latency 1 us is assumed (measured)",
    )
    assert topology.domains().tier == "pcie"


CHANGES = {
    # keys
    ("from: gpu0..1", "form: gpu0..1"): (
        'box.yaml:23: links[0].form: expected one of the keys from, to, kind, bandwidth',
        'found the unknown key "form" (did you mean "from"?)',
    ),
    ("    efficiency: 0.5\n", ""): (
        'box.yaml:8: profiles.card: expected the key "efficiency", found none (add',
    ),
    ("kind: pcie_switch", "kind: pcie_switch, kind: hub"): (
        'box.yaml:21: switches[0].kind: expected each key once, found a second "kind"',
        "(the first is at line 21)",
    ),
    ("name: switch", "on: switch"): (
        "box.yaml:21: switches[0]: expected a text as key, found on (a truth value)",
        "(write 'on' in quotes)",
    ),
    ("name: switch", "{a: b}: switch"): (
        "box.yaml:21: switches[0]: expected a text as key, found a mapping",
    ),
    ("name: switch", "<<: switch"): ("expected a text as key, found << (a merge key)",),
    # units and values
    ("24 GB/s", "450"): (
        'box.yaml:17: kinds.pcie.bandwidth: expected a bandwidth such as "450 GB/s", found "450": '
        'a number needs its unit (write "450 GB/s")',
    ),
    ("24 GB/s", "1e9"): ('found "1e9": a number needs its unit',),
    ("24 GB/s", "12:30:00"): ('such as "450 GB/s", found "12:30:00"',),
    ("24 GB/s", "0 GB/s"): (
        'kinds.pcie.bandwidth: expected a bandwidth such as "450 GB/s", above zero, found "0 GB/s"',
    ),
    ("24 GB/s", "1e-999 GB/s"): ("the number is too small",),
    ("24 GB/s", "-24 GB/s"): ("above zero, found",),
    ("24 GB/s", "1e999 GB/s"): ("the number is too large",),
    ("24 GB/s", ".inf"): ('found ".inf"',),
    ("24 GB/s", ""): ('expected a bandwidth such as "450 GB/s", found nothing',),
    ("24 GB/s", "[24 GB/s]"): ('such as "450 GB/s", found a sequence',),
    ("24 GB/s", "2 us"): ('unknown unit "us"',),
    ("latency: 1 us", "latency: -1 us"): ('a time such as "2 us", not below zero, found "-1 us"',),
    ("latency: 1 us", "latency: 1"): ('kinds.pcie.latency: expected a time such as "2 us"',),
    ("80 GB", "80"): ('devices[0].memory: expected a memory size such as "80 GB", found "80"',),
    ("100 TFLOP/s", "100 TFLOPS"): ('did you mean "TFLOP/s"?',),
    ("efficiency: 0.5", "efficiency: 0"): (
        "profiles.card.efficiency: expected the part of the peak that is sustained: "
        "a number above 0 and at most 1, found 0 (an integer)",
    ),
    ("efficiency: 0.5", "efficiency: 1.5"): ("at most 1, found 1.5 (a number)",),
    ("efficiency: 0.5", "efficiency: .nan"): ("found .nan (a number)",),
    ("efficiency: 0.5", 'efficiency: "0.5"'): ('at most 1, found "0.5"',),
    # other types, and what YAML 1.1 makes of plain text
    ("version: 1", "version: 2"): (
        "box.yaml:2: version: expected version 1, found 2 (an integer)",
        "(this release reads version 1 only)",
    ),
    ("version: 1", "version: one"): ("version: expected a version: a plain whole number",),
    ("version: 1", "version: 01"): ("a plain whole number from 1 to 999999, found 01",),
    ("version: 1\n", ""): ('box.yaml:1: expected the key "version", found none',),
    ("charm-sched/topology", "other"): (
        'box.yaml:1: schema: expected "charm-sched/topology", found "other"',
    ),
    ("head_dim: 128", "head_dim: 010"): ("found 010 (an integer)",),
    ("head_dim: 128", "head_dim: 0x80"): ("found 0x80 (an integer)",),
    ("head_dim: 128", "head_dim: 1_28"): ("found 1_28 (an integer)",),
    ("head_dim: 128", "head_dim: 2:08"): ("found 2:08 (an integer)",),
    ("head_dim: 128", "head_dim: 99999999999999999999"): ("number from 1 to 4096, found 9",),
    ("causal: true", "causal: yes"): ("rates[0].causal: expected true or false, found yes",),
    ("causal: true", 'causal: "true"'): ('expected true or false, found "true"',),
    ("name: box", "name: on"): (
        "box.yaml:3: name: expected a name, found on (a truth value)",
        '(YAML reads this as a truth value; write "on" in quotes)',
    ),
    ("name: box", "name: 010"): ('expected a name, found 010 (an integer) (YAML reads this as',),
    ("name: box", "name: 12:30:00"): ('write "12:30:00" in quotes',),
    ("name: box", "name: 2026-11-30"): ("found 2026-11-30 (a date)",),
    ("name: box", 'name: " "'): ("name: expected a name, found an empty text",),
    ("name: box", "name: a b"): ('a name of letters, digits and _ - + : . /, found "a b"',),
    ("name: box", "name: !!python/object:os.system box"): (
        "name: expected plain YAML, found the tag tag:yaml.org,2002:python/object:os.system",
    ),
    ("description: Two devices.", "description: [Two]"): ("expected a text, found a sequence",),
    ("tiers: [pcie]", "tiers: pcie"): ("tiers: expected a sequence of tier names",),
    ("tiers: [pcie]", "tiers: []"): ("(leave the key out to have them named)",),
    ("tiers: [pcie]", "tiers: [a, a]"): ('tiers[1]: expected each tier name once, found a',),
    ("direction: forward", "direction: forwards"): (
        'expected a direction: forward or backward, found "forwards" (did you mean "forward"?)',
    ),
    ("dtypes: [bf16]", "dtypes: [bf16, bf16]"): ("expected at least one dtype, each once",),
    ("dtypes: [bf16]", "dtypes: [bf61]"): ('dtypes[0]: expected a dtype: bf16 or fp16',),
    ("peak: {bf16: 100 TFLOP/s, fp32: 10 TFLOP/s}", "peak: {}"): (
        "profiles.card.peak: expected a peak for at least one dtype, found an empty mapping",
    ),
    ("assumed: [overhead]", "assumed: [overheads]"): (
        'assumed[0]: expected a number of this entry: ', '(did you mean "overhead"?)',
    ),
    ("assumed: [overhead]", "assumed: overhead"): ("assumed: expected true or false",),
    ("source: measured", "source: {widths: x}"): ('found the unknown key "widths"',),
    ("source: measured", "source: 17"): ("write \"17\" in quotes",),
    # names that must be there, and only once
    ("to: switch", "to: swich"): (
        'box.yaml:23: links[0].to: expected the name of a device or switch, found "swich" '
        '(did you mean "switch"?)',
    ),
    ("from: gpu0..1", "from: gpu0..2"): ('links[0].from: expected the name of a device or switch, '
        'found "gpu2"',),
    ("from: gpu0..1, to: switch", "from: switch, to: switch"): (
        'expected two different ends, found "switch" twice',
    ),
    ("name: switch", "name: gpu1"): ('expected each name once, found a second "gpu1"',),
    ("profile: card", "profile: cart"): ('name of a profile, found "cart" (did you mean "card"?)',),
    ("profile: card", "profile: h100"): ('found "h100" (add it under profiles)',),
    ("kind: pcie}", "kind: pci}"): (
        'links[0]: expected the key "bandwidth" here or under kinds.pci, found none '
        '(did you mean kind "pcie"?)',
    ),
    ("from: gpu0..1, to", "from: gpu0, to"): (
        'box.yaml:19: devices[0].name: expected every device to be reachable, '
        'found no way from "gpu0" to "gpu1" (add a link)',
    ),
    # ranges and counts
    ("name: gpu0..1", "name: gpu1..0"): (
        'expected a range from a smaller to a larger number, found "1..0"',
    ),
    ("name: gpu0..1", "name: gpu0..99999999999"): ("found \"0..99999999999\"",),
    ("name: gpu0..1", "name: gpu0..9999999"): (f'at most {MAX_PARTS} names, found 10000000',),
    ("name: gpu0..1", "name: gpu0...1"): ('with ranges such as "gpu0..7", found "gpu0...1"',),
    ("name: gpu0..1", "name: -gpu"): ("expected a device name of letters, digits",),
    ("from: gpu0..1, to: switch", "from: gpu0..1, to: gpu0..2"): (
        "links[0].to: expected as many ends on both sides, or a multiple, found 2 and 3 "
        "(use pairing: all to join each with each)",
    ),
    ("kind: pcie}", "kind: pcie, pairing: some}"): ("expected a pairing: block or cycle or all",),
    ("kind: pcie}", "kind: pcie, count: 0}"): ("expected a count: a whole number from 1 to 1024",),
    ("kind: pcie}", "kind: pcie, shared: true, reverse: 1 GB/s}"): (
        "links[0].reverse: expected no reverse bandwidth on a shared link",
    ),
    # structure
    ("devices:\n  - {name: gpu0..1, profile: card, memory: 80 GB}\n", "devices: []\n"): (
        'found "gpu0"',
    ),
    ("switches:\n  - {name: switch, kind: pcie_switch}\n", "switches: {}\n"): (
        "switches: expected a sequence of switches, found an empty mapping",
    ),
    ("    rates:\n", "    rates:\n   - x\n"): ("expected YAML, found a syntax error",),
    ("tiers: [pcie]", "tiers: *none"): ("expected an alias of something above, found *none",),
    ("tiers: [pcie]", "tiers: &x [*x]"): ("tiers[0]: expected an alias of something above",),
    ("tiers: [pcie]", "tiers: [pcie]\n---\na: 1"): ('expected one document, found a second',),
}  # fmt: skip


@pytest.mark.parametrize(("change", "pieces"), CHANGES.items(), ids=lambda x: repr(x)[:60])
def test_refused(change: tuple[str, str], pieces: tuple[str, ...]) -> None:
    message = refuse(changed(*change))
    assert message.startswith("box.yaml")
    for piece in pieces:
        assert piece in message


def test_wrong_number_of_tiers(tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text(changed("tiers: [pcie]", "tiers: [upi, pcie]"))
    with pytest.raises(TopologyError) as caught:
        load_topology(file)
    assert str(caught.value).startswith(
        f"{file}: tiers: expected 1 (the depth of the hierarchy: 2 single), found 2 "
    )


@pytest.mark.parametrize("text", ["", "\n# only a comment\n", "---\n"])
def test_empty(text: str) -> None:
    message = refuse(text)
    assert "expected" in message
    if text != "---\n":
        assert "found an empty file" in message


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("just text", 'box.yaml:1: expected a mapping (key: value), found "just text"'),
        ("[1, 2]", "expected a mapping (key: value), found a sequence"),
        ("a: [", "expected YAML, found a syntax error"),
        ("\x01", "expected YAML, found"),
        ("{a: 1}", 'expected the key "schema", found none (add "schema: charm-sched/topology"'),
    ],
)
def test_no_topology_at_all(text: str, piece: str) -> None:
    assert piece in refuse(text)


@pytest.mark.parametrize("depth", [MAX_DEPTH, 100_000])
def test_depth(depth: int) -> None:
    message = refuse("a: " + "[" * depth)
    assert f"expected at most {MAX_DEPTH} levels of nesting, found more" in message


def test_aliases_that_explode() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    message = refuse("\n".join(lines))
    assert "values, found aliases that expand to more" in message


def test_aliases_are_read() -> None:
    text = GOOD.replace("profile: card, memory: 80 GB", "profile: card, memory: &size 80 GB")
    text = text.replace(
        "switches:", "  - {name: gpu2, profile: card, memory: *size}\nswitches:"
    ).replace("from: gpu0..1", "from: gpu0..2")
    assert parse_topology(text, where="x").device("gpu2").memory == 80e9


def test_templates_nest() -> None:
    body = """\
templates:
  node: {devices: [{name: "gpu0..1", profile: card}], switches: [{name: nic, kind: nic}],
    links: [{from: gpu0..1, to: nic, kind: pcie, bandwidth: 24 GB/s, latency: 1 us}]}
  rack:
    parts: [{name: node00..02, template: node}]
    switches: [{name: leaf, kind: leaf}]
    links: [{from: node00..02/nic, to: leaf, kind: ib, bandwidth: 24 GB/s, latency: 1 us}]
parts: [{name: rack0..1, template: rack}]
links: [{from: rack0/leaf, to: rack1/leaf, kind: ib, bandwidth: 24 GB/s, latency: 1 us}]
"""
    topology = parse(body)
    assert len(topology.devices) == 12
    assert topology.device_names[:3] == (
        "rack0/node00/gpu0",
        "rack0/node00/gpu1",
        "rack0/node01/gpu0",
    )
    assert len(topology.links) == 2 * (12 + 6 + 1)
    assert parse(body.replace("node00..02/nic", "node00..03/nic").replace(
        "name: node00..02", "name: node00..03")).device_names[7] == "rack0/node03/gpu1"  # fmt: skip


TEMPLATES = {
    "templates: {a: {parts: [{name: x, template: b}]}, b: {parts: [{name: x, template: a}]}}\n"
    "parts: [{name: y, template: a}]": (
        "templates.b.parts[0].name: expected templates that do not contain themselves, "
        "found a > b > a"
    ),
    "templates: {a: {devices: [{name: x, profile: card}]}}\n"
    "parts: [{name: y, template: a}, {name: y, template: a}]": (
        'parts[1].name: expected each name once, found a second "y/x"'
    ),
    "parts: [{name: y, template: a}]": 'name of a template, found "a" (add it under templates)',
    "templates: {a: {devices: [{name: x0..999, profile: card}]}}\n"
    "parts: [{name: y0..9999, template: a}]": (
        f"expected at most {MAX_PARTS} devices, switches or links, found 10000000"
    ),
    "devices: [{name: x0..1999, profile: card}]\nkinds: {w: {bandwidth: 1 B/s, latency: 0 s}}\n"
    "links: [{from: x0..1999, to: x0..1999, pairing: all, kind: w}]": (
        f"expected at most {MAX_PARTS} devices, switches or links, found 4000000"
    ),
    "templates: {a: {devices: [{name: x, profile: card}], name: z}}": (
        'templates.a.name: expected one of the keys description, parts, devices, switches, links, '
        'found the unknown key "name"'
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "piece"), TEMPLATES.items())
def test_refused_templates(body: str, piece: str) -> None:
    assert piece in refuse(HEAD + body + "\n")


def test_no_device() -> None:
    assert "expected at least one device, found none (add devices: or parts:)" in refuse(HEAD)


@pytest.mark.parametrize(
    ("pairing", "ends"),
    [
        ("block", ["h0", "h0", "h1", "h1"]),
        ("cycle", ["h0", "h1", "h0", "h1"]),
        ("all", ["h0", "h1"] * 4),
    ],
)
def test_pairings(pairing: str, ends: list[str]) -> None:
    wire = link("g0..3", "h0..1", 1, "wire", f"pairing: {pairing}")
    for text in (wire, wire.replace("from: g0..3, to: h0..1", "from: h0..1, to: g0..3")):
        topology = parse(section(devices="g0..3", switches=["h0..1 hub"], links=[text, HUBS]))
        pairs = sorted(
            tuple(sorted((k.src, k.dst))) for k in topology.links[::2] if k.kind == "wire"
        )
        assert [b for _, b in pairs] == ends


HUBS = link("h0", "h1", 1, "trunk")


def test_kinds_give_defaults_and_links_override() -> None:
    body = """\
kinds:
  wire: {bandwidth: 8 GB/s, latency: 1 us, flow_cap: 4 GB/s, assumed: true, source: guess}
devices: [{name: g0..2, profile: card}]
links:
  - {from: g0, to: g1, kind: wire}
  - {from: g1, to: g2, kind: wire, bandwidth: 6 GB/s, source: measured}
  - {from: g0, to: g2, kind: wire, latency: 3 us, assumed: [latency]}
"""
    first, second, third = parse(body).links[::2]
    assert (first.bandwidth, first.flow_cap, first.assumed_keys) == (
        8e9,
        4e9,
        ("bandwidth", "latency", "flow_cap"),
    )
    assert (second.bandwidth, second.source) == (6e9, "measured")
    assert second.assumed_keys == ("latency", "flow_cap")
    assert (third.latency, third.assumed_keys) == (3e-6, ("bandwidth", "latency", "flow_cap"))


def test_round_trip() -> None:
    body = """\
kinds:
  wire: {bandwidth: 8 GB/s, latency: 1 us, flow_cap: 4 GB/s, assumed: [flow_cap], source: guess}
devices:
  - {name: g0..2, profile: card, memory: 80 GiB, port: 10 GB/s, assumed: [port], source: {port: p}}
  - {name: x, profile: card}
links:
  - {from: g0..2, to: x, kind: wire, reverse: 2 GB/s}
  - {from: g0, to: g1, kind: wire, bandwidth: 333333333.3 B/s}
  - {from: g1, to: g2, kind: bus, bandwidth: 1 GB/s, latency: 0 s, shared: true, count: 2}
assumptions: [the world is flat]
"""
    topology = parse(body)
    document = topology.to_document()
    again = Topology.from_document(json.loads(json.dumps(document)), where="again")
    assert again.digest == topology.digest
    assert again.to_document() == document
    assert (again.devices, again.switches, again.links, again.capacities) == (
        topology.devices,
        topology.switches,
        topology.links,
        topology.capacities,
    )
    assert again.assumptions == topology.assumptions
    assert topology.assumptions[-1] == "the world is flat"
    assert "devices with card: port 10 GB/s is assumed (p)" in topology.assumptions
    assert pickle.loads(pickle.dumps(topology)).digest == topology.digest


SAME = [
    ("name: box", "name: crate # a comment"),
    ("description: Two devices.\n", ""),
    ("source: measured", "source: elsewhere"),
    ("assumed: [latency], ", ""),
    ("tiers: [pcie]\n", ""),
    ("24 GB/s", "24000 MB/s"),
    ("profile: card", "profile: &c card"),
]
OTHER = [
    ("24 GB/s", "25 GB/s"),
    ("latency: 1 us", "latency: 2 us"),
    ("24 GB/s", "24 GB/s, flow_cap: 24 GB/s"),
    ("24 GB/s", "24 GB/s, shared: true"),
    ("24 GB/s", "24 GB/s, reverse: 23 GB/s"),
    ("80 GB", "80 GiB"),
    ("80 GB", "80 GB, port: 20 GB/s"),
    ("100 TFLOP/s", "101 TFLOP/s"),
    ("50 TFLOP/s", "51 TFLOP/s"),
    ("overhead: 5 us", "overhead: 6 us"),
    ("efficiency: 0.5", "efficiency: 0.6"),
    ("memory_bandwidth: 1 TB/s", "memory_bandwidth: 2 TB/s"),
    ("kind: pcie_switch", "kind: hub"),
    ("kind: pcie}", "kind: pcie, count: 2}"),
]


@pytest.mark.parametrize("change", SAME)
def test_digest_leaves_out_words(change: tuple[str, str]) -> None:
    assert parse_topology(changed(*change), where="x").digest == digest_of_good()


@pytest.mark.parametrize("change", OTHER)
def test_digest_covers_the_physical_part(change: tuple[str, str]) -> None:
    assert parse_topology(changed(*change), where="x").digest != digest_of_good()


def digest_of_good() -> str:
    return parse_topology(GOOD, where="x").digest


def test_missing_file_names_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology("dual_numa_pci")
    message = str(caught.value)
    assert message.startswith("dual_numa_pci: expected a topology file or a shipped name, found no")
    assert '(did you mean "dual_numa_pcie"?)' in message
    assert f"charm-topo list shows the {len(shipped_names())} shipped ones" in message
    with pytest.raises(TopologyError, match=r"nowhere\.yaml: expected a topology file .* shipped "):
        load_topology(tmp_path / "nowhere.yaml")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="expected a topology file, found a directory"):
        load_topology(tmp_path)
    with pytest.raises(TopologyError, match="found something that is no file"):
        load_topology("/dev/null")
    with pytest.raises(TopologyError, match="expected a topology file"):
        load_topology("box\0.yaml")
    with pytest.raises(TopologyError, match="expected a topology file"):
        load_topology("x" * 5000)


def test_encoding(tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_bytes(GOOD.replace("Two", "Zw\xf6lf").encode("latin-1"))
    with pytest.raises(TopologyError) as caught:
        load_topology(file)
    assert str(caught.value) == (
        f"{file}:4: expected UTF-8 text, found byte 0xf6 (save the file as UTF-8)"
    )
    file.write_text("\ufeff" + GOOD, encoding="utf-8")
    assert load_topology(str(file)).name == "box"


def test_documents_are_as_strict_as_files() -> None:
    document = parse_topology(GOOD, where="box.yaml").to_document()
    for change, piece in (
        ({"versoin": 1}, 'plan.json: versoin: expected one of the keys schema, version'),
        ({"version": "1"}, 'plan.json: version: expected a version: a plain whole number'),
        ({"name": None}, "plan.json: name: expected a name, found nothing"),
        ({"devices": {}}, "plan.json: devices: expected a sequence of devices"),
        ({"links": [{"from": 1}]}, "plan.json: links[0]: expected the key \"to\", found none"),
        ({"tiers": {1: 2}}, "plan.json: tiers: expected text keys, found 1"),
        ({"tiers": object()}, "plan.json: tiers: expected a JSON value, found object"),
    ):  # fmt: skip
        with pytest.raises(TopologyError) as caught:
            Topology.from_document({**document, **change}, where="plan.json")
        assert str(caught.value).startswith(piece)
    deep: list[Any] = []
    for _ in range(MAX_DEPTH + 2):
        deep = [deep]
    with pytest.raises(TopologyError, match="levels of nesting"):
        Topology.from_document({**document, "tiers": deep})


def scalars(value: object, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, container, key) of every scalar of a document."""
    if isinstance(value, dict):
        for key, entry in value.items():
            inner = f"{path}.{key}" if path else key
            yield from (
                scalars(entry, inner) if isinstance(entry, dict | list) else [(inner, value, key)]
            )
    elif isinstance(value, list):
        for i, entry in enumerate(value):
            inner = f"{path}[{i}]"
            yield from (
                scalars(entry, inner) if isinstance(entry, dict | list) else [(inner, value, i)]
            )


FREE = ("description", "source", "kinds.pcie.source")  # any text is right here
GARBAGE: st.SearchStrategy[object] = st.one_of(
    st.sampled_from([None, -1, 0, 1.5, float("nan"), float("inf"), [], {}, [None], "", "?", "1e9"]),
    st.text(alphabet="{}[]!*&#?\n\t\0 \u20ac", min_size=1, max_size=8),
    st.integers(min_value=10**7),
)


@given(data=st.data())
def test_any_scalar_turned_into_garbage_is_one_error(data: st.DataObject) -> None:
    document = copy.deepcopy(parse_topology(GOOD, where="box.yaml").to_document())
    places = [place for place in scalars(document) if not place[0].endswith(FREE)]
    path, container, key = data.draw(st.sampled_from(places))
    container[key] = data.draw(GARBAGE)
    with pytest.raises(TopologyError) as caught:
        Topology.from_document(document, where="doc")
    message = str(caught.value)
    assert message.startswith(f"doc: {path}")
    assert "expected" in message
    assert "found" in message


@given(at=st.integers(0, len(GOOD) - 1), new=st.sampled_from("{}[]:,-!*&#?'\"\n\t\0 %@`xX0"))
def test_any_character_changed_is_read_or_one_error(at: int, new: str) -> None:
    try:
        parse_topology(GOOD[:at] + new + GOOD[at + 1 :], where="box.yaml")
    except TopologyError as error:
        assert str(error).startswith("box.yaml")  # noqa: PT017


@given(st.text(max_size=80))
def test_any_text_is_read_or_one_error(text: str) -> None:
    with pytest.raises(TopologyError, match=r"^box\.yaml"):
        parse_topology(text, where="box.yaml")


def test_importing_is_cheap() -> None:
    code = (
        "import sys, charm_sched.topology.graph; "
        "print(*{'numpy', 'networkx', 'scipy', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == ""
