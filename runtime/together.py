"""All ranks of a plan in one process and one thread: no network, no timeouts, any order.

For checking a plan on numbers where spawning processes would be too slow. What is ready is done in
an order drawn from a seed, so races that a network would show now and then show here at once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.runtime.execution import Execution
from charm_sched.runtime.transport import Done

Address = tuple[int, int, int, int]


class Exchange:
    """Carries messages between ranks of one process, when it is told to."""

    def __init__(self) -> None:
        self._sends: dict[Address, tuple[Tensor, Done]] = {}
        self._receives: dict[Address, tuple[Tensor, Done]] = {}
        self.matched: list[Address] = []

    def port(self, rank: int) -> Port:
        """Give a rank's transport."""
        return Port(self, rank)

    def post(self, address: Address, message: Tensor, done: Done, *, sends: bool) -> None:
        """Take one end of a message."""
        mine, theirs = (self._sends, self._receives) if sends else (self._receives, self._sends)
        assert address not in mine, f"{address} is posted twice"
        mine[address] = (message, done)
        if address in theirs:
            self.matched.append(address)

    def deliver(self, index: int) -> None:
        """Carry one message whose two ends are posted."""
        address = self.matched.pop(index)
        source, sent = self._sends.pop(address)
        target, received = self._receives.pop(address)
        target.copy_(source)
        received(None)
        sent(None)


class Port:
    """One rank's view of an `Exchange`."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self._exchange, self._rank = exchange, rank

    def send(self, message: Tensor, *, peer: int, lane: int, tag: int, done: Done) -> None:
        """Send; see `Transport`."""
        self._exchange.post((self._rank, peer, lane, tag), message, done, sends=True)

    def receive(self, message: Tensor, *, peer: int, lane: int, tag: int, done: Done) -> None:
        """Receive; see `Transport`."""
        self._exchange.post((peer, self._rank, lane, tag), message, done, sends=False)


def run_together(runs: Sequence[Execution], exchange: Exchange, seed: int | None = None) -> None:
    """Run the programs of all ranks to their end.

    Args:
        runs: One run per rank, on the ports of ``exchange``.
        exchange: Carries the messages.
        seed: Draws what is done next; None takes turns.

    Raises:
        RuntimeFailure: Nothing can go on, though not all is done; one waiting op per rank is named.
    """
    draw = random.Random(seed)
    ready = [(rank, number) for rank, run in enumerate(runs) for number in run.first()]
    while True:
        choices = len(ready) + len(exchange.matched)
        if not choices:
            break
        at = 0 if seed is None else draw.randrange(choices)
        if at >= len(ready):
            exchange.deliver(at - len(ready))
            continue
        rank, number = ready.pop(at)
        if runs[rank].is_transfer(number):
            _post(runs[rank], rank, number, ready)
        else:
            runs[rank].compute(number)
            ready += [(rank, after) for after in runs[rank].finish(number)]
    stuck = [f"rank {rank} has {run.left} ops left" for rank, run in enumerate(runs) if run.left]
    if stuck:
        raise RuntimeFailure(f"the plan cannot go on: {'; '.join(stuck)}")


def _post(run: Execution, rank: int, number: int, ready: list[tuple[int, int]]) -> None:
    def done(error: Exception | None) -> None:
        if error is not None:
            raise error
        run.land(number)
        ready.extend((rank, after) for after in run.finish(number))

    run.post(number, done)
