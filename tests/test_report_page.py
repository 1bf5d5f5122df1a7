"""The HTML report: it holds everything, fetches nothing, and nothing in a file becomes markup.

``python tests/test_report_page.py`` takes the pictures of README.md again; it needs Chromium.
"""

from __future__ import annotations

import base64
import doctest
import hashlib
import itertools
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.browser import CHROMIUM, Page, browser
from support.commands import Call, caller

from charm_sched import Workload, load_topology
from charm_sched.cli import plan_main, sim_main
from charm_sched.commands.extras import Extras
from charm_sched.errors import CharmSchedError
from charm_sched.export import drawing, figures, markup, page, timeline_data
from charm_sched.export.drawing import MOST_DEVICES, draw
from charm_sched.export.machine_lines import lines_of, words_of
from charm_sched.export.page import START, report_page
from charm_sched.report.documents import assumptions
from charm_sched.search.planning import plan_all
from charm_sched.search.results import Comparison
from charm_sched.timelines.link_load import LinkLoad, link_loads
from charm_sched.topology import reader
from charm_sched.topology.graph import Topology
from charm_sched.units import format_bytes
from charm_sched.what_if.explain import explain
from charm_sched.what_if.lengths import points_of
from charm_sched.what_if.levers import find_levers

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
WORK = Workload(seq_len=4096, heads=8, kv_heads=2, head_dim=64, dtype="bf16", mask="causal")
EVIL = "<script>window.hacked=1</script><img src=x onerror=window.hacked=2>"


def compared(machine: Topology, work: Workload = WORK) -> Comparison:
    return plan_all(machine, work, strategies=("ring", "charm"))


def page_of(comparison: Comparison, *, levers: bool = True) -> str:
    chosen = comparison.chosen
    found: Any = [None] * len(chosen)
    if levers:
        found = find_levers(list(chosen.values()), comparison.topology)
    told = {d: explain(r, tried) for (d, r), tried in zip(chosen.items(), found, strict=True)}
    points = list(points_of(comparison))
    return report_page(comparison, extras=Extras(explanations=told), points=points)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compared(load_topology("dual_numa_pcie"))


@pytest.fixture(scope="module")
def text(comparison: Comparison) -> str:
    return page_of(comparison)


class Parts(HTMLParser):
    """The elements of a page, the text outside scripts, and the content of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            given, before = self.scripts[-1]
            self.scripts[-1] = given, before + data
        elif self._inside != "style":
            self.words.append(data)

    @property
    def policy(self) -> str:
        (found,) = (
            given["content"]
            for tag, given in self.elements
            if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy"
        )
        return found or ""

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0][1])


@pytest.fixture(scope="module")
def parts(text: str) -> Parts:
    return Parts(text)


def test_nothing_is_fetched(parts: Parts, text: str) -> None:
    assert text.encode().startswith(START)
    names = {"src", "href", "srcset", "action", "data", "poster"}
    assert not [(tag, given) for tag, given in parts.elements if names & given.keys()]
    assert not {tag for tag, _ in parts.elements} & {"link", "iframe", "object", "embed", "base"}
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    assert "url(" not in style
    assert "@import" not in style
    assert parts.policy.startswith("default-src 'none';")


def test_the_policy_lets_just_the_scripts_of_the_page_run(parts: Parts) -> None:
    data, *scripts = parts.scripts
    assert data[0]["type"] == "application/json"
    assert len(scripts) == 2
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for _, s in scripts]
    (allowed,) = re.findall(r"script-src ([^;]*)", parts.policy)
    assert allowed == " ".join(f"'sha256-{digest}'" for digest in digests)


def test_the_page_says_what_was_found(parts: Parts, comparison: Comparison) -> None:
    words = " ".join(" ".join(parts.words).split())
    for result in comparison.chosen.values():
        assert format_bytes(result.peak_bytes, digits=3) in words
        assert f"{result.speedup_vs_ring:.2f} times as fast" in words
    for sentence in assumptions(comparison):
        assert " ".join(sentence.split()) in words
    for title in ("what would help most", "why it takes that long", "memory over time",
                  "NCCL constant for PCIe Gen4 x16", "Such predictions were"):  # fmt: skip
        assert title in words


def test_without_scripts_tables_stand_there(parts: Parts) -> None:
    inside = [tag for tag, _ in parts.elements]
    assert inside.count("noscript") >= 5
    assert inside.count("table") >= 6


def test_every_link_tells_its_bytes(parts: Parts, comparison: Comparison) -> None:
    for direction, result in comparison.chosen.items():
        traces = parts.data["figures"][f"machine-{direction}"]["data"]
        (marks,) = (trace for trace in traces if trace.get("name") == "links")
        machine = comparison.topology
        assert len(marks["text"]) == len(machine.links) // 2
        told = "".join(marks["text"]).replace("&gt;", ">").replace("&lt;", "<")
        for load in link_loads(result.timeline):
            if load.kind != "port":
                assert load.name in told
                assert format_bytes(load.bytes, digits=3) in told
        (devices,) = (trace for trace in traces if trace.get("name") == "devices")
        assert len(devices["x"]) == len(machine.devices)


def test_the_timeline_holds_every_operation(parts: Parts, comparison: Comparison) -> None:
    for direction, result in comparison.chosen.items():
        data = parts.data["timelines"][f"timeline-{direction}"]
        columns, timeline = data["columns"], result.timeline
        assert {len(column) for column in columns.values()} == {len(result.plan)}
        assert sum(columns["bytes"]) == timeline.total_bytes
        assert max(columns["end"]) == pytest.approx(timeline.makespan * 1e9, abs=1)
        assert columns["critical"].count(1) == len(timeline.critical_path())
        assert data["note"] == ""
        assert set(data["views"][-1]["ranks"]) == set(range(8))


def test_of_many_operations_some_ranks_are_kept(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = comparison.chosen["forward"].timeline
    monkeypatch.setattr(timeline_data, "MOST_OPS", len(timeline.plan) // 3)
    data = timeline_data.timeline_data(timeline)
    kept = data["views"][-1]["ranks"]
    assert 0 < len(kept) < 8
    assert len(data["columns"]["rank"]) <= timeline_data.MOST_OPS
    assert set(data["columns"]["rank"]) == set(kept)
    assert "of 8 ranks are in this page" in data["note"]
    on_path = timeline.plan.columns.rank[timeline.critical_path()]
    assert set(kept) & set(on_path.tolist())


def test_of_too_many_operations_levels_are_put_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = load_topology("dual_numa_pcie")
    found = plan_all(
        machine, WORK, strategies=("all_gather",), directions=("forward",),
        params={"algorithm": "direct"},
    )  # fmt: skip
    timeline = found.chosen["forward"].timeline
    monkeypatch.setattr(timeline_data, "MOST_OPS", 1)
    data = timeline_data.timeline_data(timeline)
    columns = data["columns"]
    kept = data["views"][-1]["ranks"]
    rows = [row for row in range(len(timeline.plan)) if timeline.plan.columns.rank[row] in kept]
    assert sum(columns["ops"]) == len(rows)
    assert sum(columns["bytes"]) == timeline.plan.op_bytes[rows].sum()
    assert len(columns["ops"]) < len(rows)
    assert "one level are drawn as one bar" in data["note"]


@pytest.mark.parametrize(
    "name", ["dual_node_nvlink", "dual_numa_pcie", "four_node_nvlink", "single_node_nvlink",
             "dgx1_v100", "dgx2", "gb200_nvl72", "mi300x_node", "cluster_1024_rails",
             "cluster_1024_leaf_spine", "cluster_256_fat_tree_2to1"]
)  # fmt: skip
def test_drawings_show_every_part_at_a_place_of_its_own(name: str) -> None:
    machine = load_topology(name)
    found = draw(machine, machine.device_names, {})
    shown = [device for device in machine.device_names if device in found.places]
    assert len(shown) + found.left_out == len(machine.devices)
    assert 0 < len(shown) <= MOST_DEVICES
    places = [(round(x, 6), round(y, 6)) for x, y in found.places.values()]
    assert len(set(places)) == len(places)
    rows: dict[float, list[tuple[float, float]]] = {}
    for part, span in found.bars.items():
        rows.setdefault(found.places[part][1], []).append(span)
    for spans in rows.values():
        assert all(a[1] < b[0] for a, b in itertools.pairwise(sorted(spans)))
    folded = {part for parts in found.stands_for.values() for part in parts}
    assert all(name in parts for name, parts in found.stands_for.items())
    if not found.left_out:
        assert found.places.keys() | folded == set(machine.part_names)


def test_a_wide_row_of_spines_is_one_bar_and_its_links_are_one_line() -> None:
    """Two thirds of the racks are not drawn, and nothing that leads to them alone."""
    machine = load_topology("cluster_1024_leaf_spine")
    chosen = [f"rack{rack}/node{node}/gpu{gpu}"
              for rack in range(4) for node in range(2) for gpu in range(8)]  # fmt: skip
    weight = dict.fromkeys(chosen, 1.0)
    found = draw(machine, machine.device_names, weight)
    assert found.stands_for == {"spine0": tuple(f"spine{n}" for n in range(16))}
    assert "spine0" in found.bars
    kinds = {switch.name: switch.kind for switch in machine.switches}
    drawn = Counter(kinds.get(part, "device") for part in found.places)
    assert drawn["spine"] == 1
    assert drawn["nic"] == drawn["device"] == len(machine.devices) - found.left_out
    assert drawn["nvswitch"] == drawn["device"] // 8
    leaves = [part for part in found.places if kinds.get(part) == "leaf"]
    assert leaves
    for leaf in leaves:
        assert any(part.startswith(leaf.removesuffix("leaf")) for part in found.places if part
                   not in leaves)  # fmt: skip
    loads = [
        LinkLoad(
            name=c.name, kind=c.kind, bandwidth=c.bandwidth, bytes=float(number),
            utilisation=number / len(machine.capacities), busy=None, rate=None,
        )
        for number, c in enumerate(machine.capacities)
    ]  # fmt: skip
    lines = list(lines_of(machine, loads, found.stands_for))
    assert sum(line.links for line in lines) == len(machine.links) // 2
    trunks = [line for line in lines if line.kind == "trunk"]
    assert {line.ends for line in trunks} == {(f"rack{n}/leaf", "spine0") for n in range(32)}
    for line in trunks:
        assert (line.links, line.of, len(line.loads)) == (32, 1, 64)
        assert (
            f"{max(line.loads, key=lambda load: load.utilisation).utilisation:.0%} used"
            in (words_of(line).partition("the fullest:")[2])
        )
        assert "32 links of 48 GB/s" in words_of(line)


@pytest.mark.parametrize("module", [drawing, figures, markup, timeline_data])
def test_doctests(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert found.failed == 0


def evil_machine(monkeypatch: pytest.MonkeyPatch) -> Topology:
    """Give a machine whose names no file may have, in case one came in another way."""
    monkeypatch.setattr(reader, "_NAME", re.compile(".+", re.S))
    document = load_topology("dual_numa_pcie").to_document()
    changed = json.dumps(document)
    for name in ("socket0/gpu0", "socket1/switch", "uplink"):
        changed = changed.replace(json.dumps(name), json.dumps(f"{name}{EVIL}"))
    read = json.loads(changed)
    read["description"] = read["name"] = EVIL
    return Topology.from_document(read)


@pytest.fixture(scope="module")
def evil() -> str:
    with pytest.MonkeyPatch.context() as patch:
        return page_of(compared(evil_machine(patch)), levers=False)


def test_names_never_become_markup(evil: str, parts: Parts) -> None:
    found = Parts(evil)
    assert len(found.scripts) == 3
    assert not [tag for tag, _ in found.elements if tag == "img"]
    assert not [key for _, given in found.elements for key in given if key.startswith("on")]
    assert EVIL in " ".join(found.words)
    assert "<" not in found.scripts[0][1]
    figures = json.dumps(found.data["figures"])
    assert "<script" not in figures  # a figure shows entities as text, but takes tags for markup
    assert "&lt;script" in figures


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    return caller(capsys, tmp_path, monkeypatch, 80)


SMALL = ("dual_numa_pcie", "--seq-len", "4K", "--ranks", "4", "--strategy", "ring")


def test_the_commands_write_reports(call: Call, tmp_path: Path) -> None:
    done = call(plan_main, *SMALL, "--report", "r.html")
    assert done.status == 0
    assert "Report:   r.html" in done.out
    assert "what would help" not in done.out  # that is asked for by --explain
    assert (tmp_path / "r.html").read_bytes().startswith(START)
    done = call(sim_main, "dual_numa_pcie.plan.json", "--report", "r.html", "--json")
    assert done.status == 0
    assert all(told["levers"] is None for told in done.document["explanations"].values())


def test_chakra_traces_by_the_command(call: Call, tmp_path: Path) -> None:
    done = call(plan_main, *SMALL, "--chakra", "et", "--direction", "forward")
    assert "Chakra:   4 execution traces in et" in done.out
    assert len(list((tmp_path / "et").glob("forward.*.et"))) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("notes.html", "is no report of charm-sched, so it is left alone"),
        ("report.pdf", "expected a name that ends in .html"),
        ("nowhere/r.html", "there is no folder nowhere"),
    ],
)
def test_reports_destroy_nothing(call: Call, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "notes.html").write_text("mine")
    done = call(plan_main, *SMALL, "--report", name)
    assert (done.status, done.out) == (1, "")
    assert message in done.err
    assert (tmp_path / "notes.html").read_text() == "mine"


def test_without_plotly_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(CharmSchedError, match=r"pip install 'charm-sched\[report\]'"):
        page.check_plotly()


@pytest.mark.slow
def test_a_page_of_64_ranks_stays_small() -> None:
    machine = load_topology("cluster_1024_rails")
    work = Workload(seq_len=65536, heads=32, kv_heads=8, head_dim=128, dtype="bf16", mask="causal")
    found = plan_all(machine, work, strategies=("charm",), ranks=64)
    assert len(page_of(found, levers=False)) < 10_000_000


# --- in a browser -------------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def file(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text)
    return path


def opened(tab: Page, file: Path, width: int = 1200, *, dark: bool = False) -> None:
    tab.problems.clear()
    tab.requests.clear()
    tab.size(width, 900, dark=dark)
    tab.open(file)


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_opens_without_a_problem(tab: Page, file: Path, width: int, dark: bool) -> None:
    opened(tab, file, width, dark=dark)
    assert tab.ask("document.documentElement.dataset.ready") == "yes"
    assert (tab.problems, tab.requests) == ([], [])
    assert tab.ask("document.querySelectorAll('.js-plotly-plot .main-svg').length") >= 10
    assert tab.ask("document.documentElement.scrollWidth") <= width
    ink = tab.ask("getComputedStyle(document.body).color")
    ground = tab.ask("getComputedStyle(document.body).backgroundColor")
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in (ink, ground)]
    assert abs(light[0] - light[1]) > 150
    assert (light[0] > light[1]) == dark
    texts = "[...document.querySelectorAll('#machine-forward text')]"
    root = f"{texts}.find((one) => one.textContent === 'root')"  # on the ground, not on a bar
    drawn = re.findall(r"\d+", tab.ask(f"getComputedStyle({root}).fill"))
    assert (sum(map(int, drawn[:3])) > 382) == dark


SHOWN = """["forward", "backward"].map(
  (direction) => document.getElementById(`%s-${direction}`).offsetHeight > 99
)"""
MIDDLE = """
(() => {
  const place = document.getElementById(%s);
  place.scrollIntoView({block: "center"});
  const layout = place._fullLayout, box = place.getBoundingClientRect();
  const trace = place.data.find((one) => one.name === %s) || place.data[0];
  const x = (trace.base ? trace.base[0] + trace.x[0] / 2 : trace.x[0]);
  return [box.left + layout._size.l + layout.xaxis.d2p(x),
          box.top + layout._size.t + layout.yaxis.d2p(trace.y[0])];
})()
"""


def hovered(tab: Page, place: str, trace: str) -> str:
    x, y = tab.ask(MIDDLE % (json.dumps(place), json.dumps(trace)))
    before = tab.ask(f"""document.querySelector("#{place} .hoverlayer").textContent""")
    tab.point(x, y)
    wait = f"""
    new Promise((done) => {{
      const look = (left) => {{
        const found = document.querySelector("#{place} .hoverlayer").textContent;
        if ((found && found !== {json.dumps(before)}) || !left) done(found);
        else setTimeout(() => look(left - 1), 50);
      }};
      look(40);
    }})"""
    return str(tab.ask(wait))


@needs_browser
def test_hovering_tells_the_numbers(tab: Page, file: Path, comparison: Comparison) -> None:
    opened(tab, file)
    link = hovered(tab, "machine-forward", "links")
    assert "used" in link
    assert "GB/s" in link
    device = hovered(tab, "machine-forward", "devices")
    assert "rank 0" in device
    assert "computes" in device
    kernel = hovered(tab, "timeline-forward", "attend")
    assert "attend on rank" in kernel
    assert "q[" in kernel
    streams = comparison.chosen["forward"].plan.streams
    transfer = hovered(tab, "timeline-forward", next(s for s in streams if s != "compute"))
    assert "transfer" in transfer
    assert "to rank" in transfer
    assert tab.problems == []


@needs_browser
def test_the_direction_and_the_ranks_can_be_chosen(tab: Page, file: Path) -> None:
    opened(tab, file)
    shown = SHOWN % "machine"
    assert tab.ask(shown) == [True, False]
    tab.ask("document.querySelectorAll('.tabs button')[1].click()")
    assert tab.ask(shown) == [False, True]
    rows = "document.getElementById('timeline-backward').layout.annotations.length"
    before = tab.ask(rows)
    tab.ask("""(() => {
      const select = document.querySelector("#timeline-backward-controls select");
      select.value = String(select.options.length - 1);
      select.dispatchEvent(new Event("change"));
    })()""")
    assert before < tab.ask(rows) == 8
    assert tab.problems == []


@needs_browser
def test_the_page_prints_both_directions(tab: Page, file: Path) -> None:
    opened(tab, file)
    found = tab.pdf()
    assert found.startswith(b"%PDF")
    tab.ask("window.dispatchEvent(new Event('beforeprint'))")
    shown = SHOWN % "timeline"
    assert tab.ask(shown) == [True, True]
    assert tab.ask("document.querySelector('main').scrollWidth") <= 700
    tab.ask("window.dispatchEvent(new Event('afterprint'))")
    assert tab.ask(shown) == [True, False]


@needs_browser
def test_names_run_nothing(tab: Page, evil: str, tmp_path: Path) -> None:
    path = tmp_path / "evil.html"
    path.write_text(evil)
    opened(tab, path)
    assert tab.ask("document.querySelector('h1').textContent") == EVIL
    assert EVIL in hovered(tab, "machine-forward", "devices")
    assert tab.ask("window.hacked === undefined")
    assert tab.ask("document.querySelectorAll('body script, img').length") == 3
    assert (tab.problems, tab.requests) == ([], [])


@needs_browser
def test_without_scripts_the_page_can_be_read(tab: Page, file: Path) -> None:
    tab.size(1200, 900)
    tab.open(file, scripts=False)
    tall = tab.call("Page.getLayoutMetrics")["cssContentSize"]["height"]
    tab.open(file)
    assert tall > 3000


@pytest.mark.parametrize("page", ["README.md", "docs/reports.md"])
def test_the_pages_show_pictures(page: str) -> None:
    path = ROOT / page
    shown = re.findall(r"!\[[^]]+\]\(([^)]*pictures/[^)]+)\)", path.read_text())
    assert shown
    for name in shown:
        data = (path.parent / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert int.from_bytes(data[16:20], "big") >= 1000  # pixels wide
        assert len(data) < 400_000


def record_pictures(folder: Path) -> None:
    machine = load_topology("dual_node_nvlink")
    work = Workload(seq_len=16384, heads=32, kv_heads=8, head_dim=128, dtype="bf16", mask="causal")
    path = folder / "report.html"
    path.write_text(page_of(plan_all(machine, work)))
    PICTURES.mkdir(exist_ok=True)
    with browser(folder / "profile") as tab:
        for name, places in (
            ("report", ("header", "#strategies")),
            ("report-machine", ("#machine-forward", "#machine-forward")),
        ):
            tab.size(1200, 900)
            tab.open(path)
            tall = tab.call("Page.getLayoutMetrics")["cssContentSize"]["height"]
            tab.size(1200, int(tall))
            first, last = (
                tab.ask(f"(document.querySelector('{p}').closest('section, header'))"
                        ".getBoundingClientRect().toJSON()")
                for p in places
            )  # fmt: skip
            clip = {
                "x": first["left"] - 20, "y": first["top"] - 20, "width": first["width"] + 40,
                "height": last["bottom"] - first["top"] + 40, "scale": 1,
            }  # fmt: skip
            taken = tab.call("Page.captureScreenshot", format="png", clip=clip)
            (PICTURES / f"{name}.png").write_bytes(base64.b64decode(taken["data"]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        record_pictures(Path(temporary))
