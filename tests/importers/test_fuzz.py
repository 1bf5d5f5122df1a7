"""No input makes an importer crash or hang: whole texts cut, mixed and damaged, and bare noise."""

from __future__ import annotations

import time

import pytest
import test_networks as networks
import test_tools as tools
from foreign import Box, imported, matrix, nccl_xml, source
from hypothesis import given, settings
from hypothesis import strategies as st

from charm_sched.errors import TopologyError
from charm_sched.importers.build import Given, import_texts
from charm_sched.importers.choices import Choices
from charm_sched.importers.formats import FORMATS
from charm_sched.importers.reading import MAX_BYTES, decode

BOX = Box([[2], [1, 1]], nv=4, nics=1)
TEXTS = {
    "topo-m": matrix(BOX),
    "topo-p2p": "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n",
    "nvlink-s": tools.nvlink(2, 2),
    "nccl-xml": nccl_xml(BOX),
    "nccl-graph": '<graphs><graph pattern="4"><channel><gpu dev="0"/></channel></graph></graphs>',
    "hwloc": tools.lstopo(),
    "rocm-smi": tools.rocm(),
    "amd-smi": tools.amd(),
    "nccl-log": tools.LOG,
    "astra-sim": networks.ASTRA,
    "slurm-conf": networks.TREE,
    "slurm-yaml": "- topology: a\n  tree:\n    switches:\n      - {switch: s, nodes: 'x[1-2]'}\n",
    "ibnetdiscover": networks.IB,
    "edge-list": networks.SIMAI,
    "infragraph": networks.INFRA,
}
NOISE = st.text(
    st.sampled_from(list("GPUNICX0123456789 \t\n|[]<>/=\"'-_.,:;#&*{}abcxyzé\x00\x1b\x85\u2028")),
    max_size=40,
)


def survive(text: str | bytes, form: str | None = None) -> None:
    """Import a text; a TopologyError with a message is a fine end."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    node = Given(source(matrix(Box([[1]], nics=1)), "node"))
    for more in ([], [node]):
        try:
            import_texts([*more, Given(decode(data, "fuzz"))], Choices(as_is=True),
                         form if not more else None)  # fmt: skip
        except TopologyError as error:
            if not str(error):
                raise


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """Cut, repeat, swap or replace pieces of a text."""
    for _ in range(draw(st.integers(1, 4))):
        a = draw(st.integers(0, len(text)))
        b = draw(st.integers(a, min(len(text), a + 60)))
        c = draw(st.integers(0, len(text)))
        match draw(st.sampled_from(["cut", "end", "noise", "copy", "number"])):
            case "cut":
                text = text[:a] + text[b:]
            case "end":
                text = text[:a]
            case "noise":
                text = text[:a] + draw(NOISE) + text[b:]
            case "copy":
                text = text[:c] + text[a:b] + text[c:]
            case "number":
                number = draw(st.sampled_from(["-1", "0", "99999999999", "1e9", "0x7", "\u0663"]))
                text = text[:a] + number + text[a + 1 :]
    return text


def test_every_format_has_a_text() -> None:
    assert set(TEXTS) == {form.name for form in FORMATS}
    for name, text in TEXTS.items():
        assert next(form.name for form in FORMATS if form.recognise(text)) == name


@pytest.mark.parametrize("form", TEXTS)
@given(data=st.data())
@settings(max_examples=40)
def test_damaged_texts(form: str, data: st.DataObject) -> None:
    survive(data.draw(damaged(TEXTS[form])), form)


@pytest.mark.parametrize("form", TEXTS)
@given(noise=st.one_of(NOISE, st.text(max_size=60)))
@settings(max_examples=15)
def test_noise_called_a_format(form: str, noise: str) -> None:
    survive(noise, form)


@given(noise=st.binary(max_size=200))
def test_bare_bytes(noise: bytes) -> None:
    survive(noise)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe\x00", b"\x00" * 100, b"G" * (MAX_BYTES + 1), b"\n" * MAX_BYTES,
        b"\t" * 100_000, b"GPU0 " * 100_000, b"GPU0\t" * 3000, b"x=" * 5_000_000,
        b"<system>" * 500_000, b"<system a='" + b"a" * 2_000_000, b"<!--" + b"-" * 2_000_000,
        b"[" * 1_000_000, b"topology: " + b"[" * 100_000, b"SwitchName=a Nodes=" + b"n[1-9]" * 2000,
        b"topology: x\n" + BOMB.encode(), b"1 1 1\n" + b"0 0 1Gbps 1us 0\n" * 300_000,
        ("\tGPU0" + "".join(f"\tGPU{i}" for i in range(1, 600)) + "\nGPU0\tX").encode(),
        b"NCCL INFO === System\n" + b"NCCL INFO CPU/0\n" * 50_000,
    ],
    ids=range(18),
)  # fmt: skip
def test_large_and_deep_inputs_end_soon(text: bytes) -> None:
    began = time.process_time()
    survive(text)
    assert time.process_time() - began < 20


def test_control_characters_stay_out_of_the_file() -> None:
    text = matrix(Box([[1], [1]], nics=1)) + "\nNIC Legend:\n\n  NIC0: mlx\x07_0\n"
    assert "\x07" not in imported(text).text
    assert "mlx?" in imported(text).text
