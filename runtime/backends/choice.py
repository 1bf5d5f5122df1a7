"""Which backend computes: named by the user, or the first that serves what is needed.

Adding a backend: satisfy `charm_sched.runtime.kernels.Kernel` and list it in `BACKENDS`; list it in
`AUTOMATIC` where it should be chosen by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from charm_sched.errors import RuntimeFailure
from charm_sched.runtime.backends.contract import check_contract
from charm_sched.runtime.backends.flash_attn import (
    FlashAttention2,
    FlashAttention3,
    FlashAttention4,
)
from charm_sched.runtime.backends.flex import Flex
from charm_sched.runtime.backends.sdpa import CpuFlash, SdpaCudnn, SdpaEfficient, SdpaFlash
from charm_sched.runtime.kernels import Kernel, Need, Reference

VARIABLE = "CHARM_SCHED_BACKEND"

BACKENDS: dict[str, Callable[[], Kernel]] = {
    "reference": Reference,
    "cpu_flash": CpuFlash,
    "sdpa_flash": SdpaFlash,
    "sdpa_efficient": SdpaEfficient,
    "sdpa_cudnn": SdpaCudnn,
    "flash_attn_2": FlashAttention2,
    "flash_attn_3": FlashAttention3,
    "flash_attn_4": FlashAttention4,
    "flex": Flex,
}
AUTOMATIC = (
    "flash_attn_3", "flash_attn_4", "flash_attn_2", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient",
    "cpu_flash", "reference",
)  # fmt: skip


def choose_kernel(name: str | None, need: Need) -> Kernel:
    """Give a kernel.

    Args:
        name: A backend's name; None means that of the environment variable
            ``CHARM_SCHED_BACKEND``, or where it is not set the first of `AUTOMATIC` that serves.
            For fp64 that is ``reference``, which is exact.
        need: What it is wanted for.

    Raises:
        RuntimeFailure: The name is not known, or the backend cannot serve the need.
    """
    where = "backend"
    if name is None and os.environ.get(VARIABLE):
        name, where = os.environ[VARIABLE], f"backend ({VARIABLE})"
    if name is None:
        if need.dtype == torch.float64:
            return Reference()
        kernels = (BACKENDS[each]() for each in AUTOMATIC)
        return next(kernel for kernel in kernels if kernel.refusal(need) is None)
    if not isinstance(name, str) or name not in BACKENDS:
        raise RuntimeFailure(f"{where}: expected {', '.join(BACKENDS)}, found {name!r}")
    kernel = BACKENDS[name]()
    lacks = kernel.refusal(need)
    if lacks is not None:
        raise RuntimeFailure(
            f"{where}: {name} needs {lacks}; found {need.dtype} on {need.device} with head sizes "
            f"{need.head_dim} and {need.value_dim}; leave the backend out to have one chosen"
        )
    return kernel


class Kernels:
    """The kernels of one session; each has shown once for each need that it keeps its contract."""

    def __init__(self) -> None:
        self._trusted: dict[tuple[str | None, Need], Kernel] = {}

    def get(self, name: str | None, need: Need) -> Kernel:
        """Give a kernel, checked at its first use.

        Raises:
            RuntimeFailure: As `choose_kernel`, or the kernel breaks the contract.
        """
        key = (name or os.environ.get(VARIABLE), need)
        if not isinstance(name, str | None) or key not in self._trusted:
            kernel = choose_kernel(name, need)
            check_contract(kernel, need)
            self._trusted[key] = kernel
        return self._trusted[key]
