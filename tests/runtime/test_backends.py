"""Backends: chosen by what is needed; those that cannot run here, on strict stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import attention_cases as cases
import pytest
import strict_kernels as strict
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_kernels import assemble

from charm_sched.errors import RuntimeFailure
from charm_sched.masks.segments import Limit
from charm_sched.runtime.backends.choice import (
    AUTOMATIC,
    BACKENDS,
    VARIABLE,
    Kernels,
    choose_kernel,
)
from charm_sched.runtime.backends.contract import check_contract
from charm_sched.runtime.backends.flash_attn import (
    FlashAttention2,
    FlashAttention3,
    FlashAttention4,
)
from charm_sched.runtime.backends.flex import Flex
from charm_sched.runtime.backends.fused import window_of
from charm_sched.runtime.backends.sdpa import SdpaCudnn, SdpaEfficient, SdpaFlash
from charm_sched.runtime.kernels import Kernel, Need, visible
from charm_sched.runtime.tiles import Tile, cut
from charm_sched.workload import Workload

STRICT: dict[str, Callable[[], Any]] = {
    "sdpa_flash": lambda: SdpaFlash(ops=strict.Aten()),
    "sdpa_efficient": lambda: SdpaEfficient(ops=strict.Aten()),
    "sdpa_cudnn": lambda: SdpaCudnn(ops=strict.Aten()),
    "flash_attn_2": lambda: FlashAttention2(module=strict.flash_attention_2()),
    "flash_attn_3": lambda: FlashAttention3(module=strict.flash_attention_3()),
    "flash_attn_4": lambda: FlashAttention4(module=strict.flash_attention_4()),
    "flex": lambda: Flex(strict.flex_attention),
}
WINDOWED = tuple(name for name in STRICT if name != "sdpa_cudnn")


@pytest.mark.parametrize("sizes", [(8, 8), (128, 128), (64, 24)], ids=str)
@pytest.mark.parametrize("name", STRICT)
def test_stand_ins_keep_the_contract(name: str, sizes: tuple[int, int]) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        need = cases.need_for(dtype, *sizes, windows=name in WINDOWED)
        check_contract(STRICT[name](), need)


@pytest.mark.parametrize("mask", ["full", "causal", "window:7", "docs:13,1,17,9"])
@pytest.mark.parametrize("name", STRICT)
def test_attention_is_put_together_from_stand_ins(name: str, mask: str) -> None:
    """Odd head sizes, groups of three, and slices that do not lie together."""
    if mask.startswith("window") and name not in WINDOWED:
        return
    work = Workload(
        seq_len=40, batch=2, heads=6, kv_heads=2, head_dim=12, v_head_dim=20, mask=mask,
        dtype="fp64",
    )  # fmt: skip
    q, k, v, dout = (x.half() for x in cases.make_tensors(work))
    exact = cases.dense_attention(work, q, k, v, dout)
    found = assemble(STRICT[name](), work, q, k, v, dout)
    wrong = cases.errors(found, exact)
    assert max(wrong.values()) < 2e-2, wrong


def test_bands_are_windows_of_the_lower_operator() -> None:
    kernel = STRICT["sdpa_flash"]()
    check_contract(kernel, cases.need_for(torch.bfloat16))
    assert {name.removesuffix("_backward") for name in kernel.ops.called} == {
        "_scaled_dot_product_flash_attention", "_flash_attention_forward", "_flash_attention",
    }  # fmt: skip


@given(length=st.integers(2, 60), window=st.integers(1, 30), data=st.data())
def test_windows_show_what_bands_show(length: int, window: int, data: st.DataObject) -> None:
    marks = sorted(data.draw(st.sets(st.integers(0, length), min_size=4, max_size=6)) if length > 6
                   else {0, 1, length - 1, length})  # fmt: skip
    rows, keys = ((marks[0], marks[-1]),), ((marks[0], marks[-2]),)
    for queries, columns in ((rows, keys), (keys, rows), (rows, rows)):
        for tile in cut(Workload(seq_len=length, mask=f"window:{window}").mask_rule, length,
                        queries, columns):  # fmt: skip
            if tile.band is None:
                assert window_of(tile) == (-1, -1)
                continue
            shape = (tile.rows[1] - tile.rows[0], tile.keys[1] - tile.keys[0])
            seen = visible(tile)
            assert seen is not None
            assert torch.equal(strict.seen_by(*shape, False, window_of(tile)), seen)


def test_a_diagonal_at_the_wrong_end_is_found() -> None:
    """Kernels differ in where their diagonal lies; one band of the contract tells them apart."""

    class FromTheFirst(FlashAttention2):
        name = "from_the_first"

        def forward(self, *args: Any, tile: Tile, **options: Any) -> Any:
            ahead = (tile.keys[1] - tile.keys[0]) - (tile.rows[1] - tile.rows[0])
            if tile.band is not None and ahead:
                lower, upper = (
                    Limit(limit.offset + ahead * limit.slides, slides=limit.slides)
                    for limit in tile.band
                )
                tile = Tile(tile.rows, tile.keys, band=(lower, upper))
            return super().forward(*args, tile=tile, **options)

    kernel = FromTheFirst(module=strict.flash_attention_2())
    with pytest.raises((RuntimeFailure, AssertionError)):
        check_contract(kernel, cases.need_for(torch.bfloat16))


def on(capability: tuple[int, int], dtype: torch.dtype, *sizes: int, windows: bool = False) -> Need:
    head_dim, value_dim = (*sizes, *sizes)[:2]
    assert capability
    return Need(
        device=torch.device("cuda"), dtype=dtype, head_dim=head_dim, value_dim=value_dim,
        windows=windows,
    )  # fmt: skip


def chosen(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], need: Need) -> str:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    return choose_kernel(None, need).name


HALF, SINGLE = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("capability", "dtype", "sizes", "windows", "expected"),
    [
        ((9, 0), HALF, (128,), False, "sdpa_flash"),
        ((8, 0), HALF, (256,), True, "sdpa_flash"),
        ((7, 5), HALF, (64,), False, "sdpa_efficient"),
        ((9, 0), SINGLE, (128,), False, "sdpa_efficient"),
        ((9, 0), HALF, (512,), False, "sdpa_efficient"),
        ((9, 0), HALF, (1024,), False, "reference"),
        ((9, 0), torch.float64, (64,), False, "reference"),
    ],
)
def test_torch_alone_serves_every_device(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype,
    sizes: tuple[int, ...], windows: bool, expected: str,
) -> None:  # fmt: skip
    monkeypatch.delenv(VARIABLE, raising=False)
    need = on(capability, dtype, *sizes, windows=windows)
    assert chosen(monkeypatch, capability, need) == expected


def install(monkeypatch: pytest.MonkeyPatch, path: str, **content: Any) -> None:
    module = ModuleType(path)
    for name, value in content.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, path, module)


def test_packages_are_taken_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    install(monkeypatch, "flash_attn", __version__="2.8.3", __path__=[])
    install(monkeypatch, "flash_attn.flash_attn_interface", **vars(strict.flash_attention_2()))
    assert chosen(monkeypatch, (8, 0), on((8, 0), HALF, 128)) == "flash_attn_2"
    assert chosen(monkeypatch, (7, 5), on((7, 5), HALF, 128)) == "sdpa_efficient"
    install(monkeypatch, "flash_attn.cute", __path__=[])
    install(monkeypatch, "flash_attn.cute.interface", **vars(strict.flash_attention_4()))
    assert chosen(monkeypatch, (10, 0), on((10, 0), HALF, 128)) == "flash_attn_4"
    assert chosen(monkeypatch, (10, 0), on((10, 0), HALF, 192, 128)) == "flash_attn_4"
    assert chosen(monkeypatch, (10, 0), on((10, 0), HALF, 192)) == "flash_attn_2"
    install(monkeypatch, "flash_attn_interface", **vars(strict.flash_attention_3()))
    assert chosen(monkeypatch, (9, 0), on((9, 0), HALF, 128)) == "flash_attn_3"
    assert chosen(monkeypatch, (10, 0), on((10, 0), HALF, 128)) == "flash_attn_4"
    install(monkeypatch, "flash_attn", __version__="2.10.0", __path__=[])
    assert chosen(monkeypatch, (8, 9), on((8, 9), HALF, 64)) == "flash_attn_2"
    install(monkeypatch, "flash_attn", __version__="2.6.3", __path__=[])
    assert chosen(monkeypatch, (8, 9), on((8, 9), HALF, 64)) == "sdpa_flash"
    with pytest.raises(RuntimeFailure, match=r"flash-attn 2.7 or later, found 2.6.3"):
        choose_kernel("flash_attn_2", on((8, 9), HALF, 64))


@pytest.mark.parametrize(
    ("name", "need", "said"),
    [
        ("sdpa_flash", cases.need_for(HALF), "needs CUDA tensors; found torch.bfloat16 on cpu"),
        ("sdpa_flash", on((9, 0), SINGLE, 64), "needs torch.float16 or torch.bfloat16"),
        ("sdpa_flash", on((9, 0), HALF, 64, 300), "needs head sizes up to 256"),
        ("flash_attn_3", on((9, 0), HALF, 64), "needs the package flash_attn_3"),
        ("flash_attn_2", on((9, 0), HALF, 64), "needs the package flash-attn, 2.7 or later"),
        ("sdpa_cudnn", on((9, 0), HALF, 64, windows=True), "needs a mask without sliding windows"),
        ("cpu_flash", on((9, 0), HALF, 64), "needs CPU tensors"),
        ("flex", on((9, 0), torch.float64, 64), "needs fp16, bf16 or fp32"),
        ("magic", cases.need_for(HALF), f"expected {', '.join(BACKENDS)}, found 'magic'"),
        (3, cases.need_for(HALF), "found 3"),
    ],
)
def test_what_a_backend_lacks_is_said(
    monkeypatch: pytest.MonkeyPatch, name: Any, need: Need, said: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(RuntimeFailure) as caught:
        choose_kernel(name, need)
    assert said in str(caught.value)


def test_a_gpu_that_is_too_new_or_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, said in (((8, 0), "9.0 or later, before 10.0"), ((12, 0), "before 10.0")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        with pytest.raises(RuntimeFailure, match=said):
            choose_kernel("flash_attn_3", on(capability, HALF, 64))


def test_processors_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert choose_kernel(None, cases.need_for(torch.float64)).name == "reference"
    assert choose_kernel(None, cases.need_for(torch.bfloat16)).name == "cpu_flash"
    kernels, need = Kernels(), cases.need_for(torch.bfloat16)
    assert kernels.get(None, need).name == "cpu_flash"
    monkeypatch.setenv(VARIABLE, "reference")
    assert choose_kernel(None, need).name == "reference"
    assert kernels.get(None, need).name == "reference"
    assert choose_kernel("cpu_flash", need).name == "cpu_flash"
    monkeypatch.setenv(VARIABLE, "none")
    with pytest.raises(RuntimeFailure, match=f"backend \\({VARIABLE}\\): expected reference"):
        kernels.get(None, need)
    with pytest.raises(RuntimeFailure, match="found 3"):
        kernels.get(3, need)  # type: ignore[arg-type]
    assert set(AUTOMATIC) | {"flex"} == set(BACKENDS)


def test_a_backend_is_checked_once_for_each_need(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[str, Need]] = []

    def check(kernel: Kernel, need: Need) -> None:
        checked.append((kernel.name, need))

    monkeypatch.setattr("charm_sched.runtime.backends.choice.check_contract", check)
    kernels, need = Kernels(), cases.need_for(torch.bfloat16)
    for _ in range(2):
        kernels.get("reference", need)
        kernels.get("reference", cases.need_for(torch.float32))
        kernels.get("cpu_flash", need)
    assert len(checked) == 3
