"""What a host that all ranks share spends per op, whatever the op's size.

On a testbed the ranks of a machine share the processors of one computer. A message keeps these
busy at both ends, a kernel when it is started; ops that begin together share them and all come
later. LogGP calls the cost of a message its overhead `o` (Alexandrov et al. 1995).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCost:
    """Seconds of the whole host.

    Attributes:
        message: Per message, both ends together.
        kernel: Per attend or merge.
    """

    message: float
    kernel: float


__all__ = ["HostCost"]
