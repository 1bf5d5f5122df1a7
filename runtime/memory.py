"""The buffers of one rank during one run: own rows, accumulators, slots, and what is in them.

Partial results are combined in the plan's row order, whoever arrives first: a contribution that is
early stays in its slot until those before it have landed.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.runtime.layout import Fields, Layout, Window
from charm_sched.runtime.numerics import merge_into
from charm_sched.runtime.program import Program, Receive, Send, Sink, Source, Version

_CPU = torch.device("cpu")


class Slots:
    """Numbered buffers of a rank, kept from run to run, and buffers for messages that are packed.

    Args:
        sizes: Bytes of each slot.
        device: Where they lie.
    """

    def __init__(self, sizes: Mapping[int, int], device: torch.device = _CPU) -> None:
        self.device = device
        self._sizes = sizes
        self._buffers: dict[int, Tensor] = {}
        self._fields: dict[int, tuple[Tensor, Fields]] = {}
        self._free: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        self._parts: dict[tuple[int, int], tuple[Fields, ...]] = {}

    def __getitem__(self, slot: int) -> Tensor:
        buffer = self._buffers.get(slot)
        if buffer is None:
            buffer = self._buffers[slot] = self._made(self._sizes[slot], f"slot {slot}")
        return buffer

    def fill(self) -> None:
        """Make all slots that are not there.

        Raises:
            RuntimeFailure: There is no memory for one.
        """
        for slot in self._sizes:
            self[slot]

    def give_up(self, slot: int) -> Tensor:
        """Hand a slot's buffer over; the slot gets a new one when it is next used."""
        buffer = self[slot]
        del self._buffers[slot]
        return buffer

    def fields(self, number: int, version: Version) -> Fields:
        """Give the fields of a version in its slot; the same tensors in every run."""
        assert version.slot is not None
        buffer = self[version.slot]
        known = self._fields.get(number)
        if known is None or known[0] is not buffer:
            known = self._fields[number] = (buffer, version.layout.views(buffer)[0])
        return known[1]

    def parts(self, step: Send | Receive, message: Tensor) -> tuple[Fields, ...]:
        """Give the fields of each item in a lent message; the same tensors whenever it is lent."""
        key = step.row, message.data_ptr()
        known = self._parts.get(key)
        if known is None:
            known = self._parts[key] = step.layout.views(message)
        return known

    def lend(self, nbytes: int, lane: int) -> Tensor:
        """Give a buffer for a message of a stream, ``[nbytes]`` uint8; `take_back` returns it."""
        free = self._free[lane, nbytes]
        return free.pop() if free else self._made(nbytes, f"a message of stream {lane}")

    def take_back(self, message: Tensor, lane: int) -> None:
        """Keep a message's buffer for later messages of the stream."""
        self._free[lane, message.numel()].append(message)

    def _made(self, nbytes: int, what: str) -> Tensor:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        except (RuntimeError, MemoryError) as error:
            raise RuntimeFailure(
                f"{what}: expected {nbytes:,} bytes on {self.device}, found no memory for them "
                f"({str(error).splitlines()[0][:120]}); plan with less --memory, or for more ranks"
            ) from error


class Memory:
    """The buffers of one run.

    Attributes:
        program: The rank's program.
        own: Fields of the rank's own rows, by kind: q, kv and in the backward g.
        home: Accumulators of the rank's own rows, by kind: o, or dq and dkv.
        device: Where all of it lies.
    """

    def __init__(
        self,
        program: Program,
        slots: Slots,
        *,
        own: Mapping[str, Fields],
        home: Mapping[str, Fields],
        residents: Mapping[str, Fields] | None = None,
        idle: bool = False,
    ) -> None:
        """Set the buffers up; where ``idle``, contributions are counted and not added."""
        self.program = program
        self._idle = idle
        self.own = own
        self.home = home
        self.device = slots.device
        self._slots = slots
        self._contents: dict[int, Fields] = {}
        self._landed = [0] * len(program.versions)
        self._early: dict[int, dict[int, tuple[Fields, int]]] = {}
        self._locks = [threading.Lock() for _ in program.versions]
        for text, number in program.started.items():
            self._contents[number] = (residents or {})[text]

    def content(self, number: int) -> Fields:
        """Give the fields that hold a version: its slot, or the rank's accumulator."""
        found = self._contents.get(number)
        if found is None:
            version = self.program.versions[number]
            found = (
                self.home[version.item.kind]
                if version.slot is None
                else self._slots.fields(number, version)
            )
            self._contents[number] = found
        return found

    def touch(self, place: Hashable, *, writes: bool) -> None:
        """Be told that the calling stream is about to read or write a buffer.

        Args:
            place: A slot's number, ``(kind, window)`` of an accumulator, or a message's address.
            writes: Whether it writes.
        """

    def place_of(self, number: int) -> Hashable:
        """Name the buffer of a version, for `touch`."""
        version = self.program.versions[number]
        if version.slot is not None:
            return version.slot
        return version.item.kind, version.window

    def _holder(self, source: Source) -> Fields:
        if source.version is None:
            return self.own[source.kind]
        self.touch(self.place_of(source.version), writes=False)
        return self.content(source.version)

    def load(self, source: Source) -> Fields:
        """Give what a read reads."""
        return source.window.load(self._holder(source))

    def message_to_send(self, step: Send) -> Tensor:
        """Give a transfer's message, packed unless it lies in a slot as it travels."""
        if (slot := self._as_it_lies(step)) is not None:
            self.touch(slot, writes=False)
            return self._slots[slot][: step.layout.nbytes]
        buffer = self._slots.lend(step.layout.nbytes, step.lane)
        self.touch(("message", buffer.data_ptr()), writes=True)
        for source, fields in zip(step.sources, self._slots.parts(step, buffer), strict=True):
            for views, rows in source.window.pieces(self._holder(source)):
                for view, field in zip(views, fields, strict=True):
                    field[:, :, rows].copy_(view)
        return buffer

    def packed_bytes(self, step: Send) -> int:
        """Give how many bytes `message_to_send` copies."""
        return step.layout.nbytes if self._as_it_lies(step) is None else 0

    def _as_it_lies(self, step: Send) -> int | None:
        """Give the slot that a message can be sent out of."""
        if step.whole is None:
            return None
        version = self.program.versions[step.whole]
        return None if version.resident else version.slot

    def message_to_receive(self, step: Receive) -> Tensor:
        """Give the buffer that a transfer's message is received into."""
        if step.direct is not None:
            self.touch(step.direct, writes=True)
            return self._slots[step.direct][: step.layout.nbytes]
        buffer = self._slots.lend(step.layout.nbytes, step.lane)
        self.touch(("message", buffer.data_ptr()), writes=True)
        return buffer

    def sent(self, step: Send, message: Tensor) -> None:
        """Take note that a message has left."""
        if self._as_it_lies(step) is None:
            self._slots.take_back(message, step.lane)

    def arrived(self, step: Receive, message: Tensor) -> None:
        """Take in a message."""
        if not self.lands(step):
            return
        place = ("message", message.data_ptr()) if step.direct is None else step.direct
        self.touch(place, writes=False)
        direct = step.direct is not None
        parts = step.layout.views(message) if direct else self._slots.parts(step, message)
        for sink, fields in zip(step.sinks, parts, strict=True):
            version = self.program.versions[sink.version]
            if not version.copied:
                self.contribute(sink, fields, in_place=direct)
            else:
                self.touch(self.place_of(sink.version), writes=True)
                copy(_everything(sink.layout), self.content(sink.version), fields)
        if step.direct is None:
            self._slots.take_back(message, step.lane)

    def lands(self, step: Receive) -> bool:
        """Say whether something is left to do when a message is there."""
        if step.direct is None:
            return True
        return not all(self.program.versions[sink.version].copied for sink in step.sinks)

    def contribute(self, sink: Sink, fields: Fields, *, in_place: bool = False) -> None:
        """Add to a partial result, now or when the contributions before it have landed.

        Args:
            sink: Where it goes.
            fields: The contribution, of the version's rectangle.
            in_place: Whether the fields already are the sink's slot.
        """
        number = sink.version
        with self._locks[number]:
            if self._landed[number] != sink.order:
                assert sink.slot is not None, "in place it waits for those before it"
                staged = fields if in_place else self.stage(sink, fields)
                self._early.setdefault(number, {})[sink.order] = (staged, sink.slot)
                return
            if not (in_place and sink.slot is None):
                self.combine(number, fields)
            self._landed[number] += 1
            early = self._early.get(number, {})
            while self._landed[number] in early:
                held, slot = early.pop(self._landed[number])
                self.touch(slot, writes=False)
                self.combine(number, held)
                self._landed[number] += 1

    def stage(self, sink: Sink, fields: Fields) -> Fields:
        """Copy a contribution into its slot, where it waits."""
        assert sink.slot is not None
        if self._idle:
            return fields
        self.touch(sink.slot, writes=True)
        staged = sink.layout.views(self._slots[sink.slot])[0]
        copy(_everything(sink.layout), staged, fields)
        return staged

    def combine(self, number: int, fields: Fields) -> None:
        """Combine a contribution with those that have landed."""
        if self._idle:
            return
        self.touch(self.place_of(number), writes=True)
        version = self.program.versions[number]
        if self._landed[number] == 0:
            copy(version.window, self.content(number), fields)
        else:
            add(version.window, self.content(number), fields)

    def keep_residents(self) -> dict[str, Fields]:
        """Hand over what stays resident at the end of the forward, by the item's text."""
        kept = {}
        for text, number in self.program.residents.items():
            version = self.program.versions[number]
            assert version.slot is not None
            kept[text] = version.layout.views(self._slots.give_up(version.slot))[0]
        return kept


def add(window: Window, holder: Fields, fields: Fields) -> None:
    """Add a partial result to a rectangle of another: merge (out, lse), sum gradients."""
    is_output = fields[-1].dim() == 3
    for views, rows in window.pieces(holder):
        parts = [field[:, :, rows] for field in fields]
        if is_output:
            merge_into(*views, *parts)
        else:
            for view, part in zip(views, parts, strict=True):
                view.add_(part)


def copy(window: Window, holder: Fields, fields: Fields) -> None:
    """Copy fields into a rectangle of others."""
    for views, rows in window.pieces(holder):
        for view, field in zip(views, fields, strict=True):
            view.copy_(field[:, :, rows])


def _everything(layout: Layout) -> Window:
    _, heads, rows = layout.items[0][0].shape[:3]
    return Window((0, heads), ((0, rows),))
