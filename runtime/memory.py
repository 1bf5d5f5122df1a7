"""The buffers of one rank during one run: own rows, accumulators, slots, and what is in them.

Partial results are combined in the plan's row order, whoever arrives first: a contribution that is
early stays in its slot until those before it have landed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from charm_sched.runtime.layout import Fields, Layout, Window
from charm_sched.runtime.numerics import merge_into
from charm_sched.runtime.program import Program, Receive, Send, Sink, Source


class Slots:
    """Numbered buffers of a rank, kept from run to run."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._sizes = sizes
        self._buffers: dict[int, Tensor] = {}

    def __getitem__(self, slot: int) -> Tensor:
        buffer = self._buffers.get(slot)
        if buffer is None:
            buffer = self._buffers[slot] = torch.empty(self._sizes[slot], dtype=torch.uint8)
        return buffer

    def give_up(self, slot: int) -> Tensor:
        """Hand a slot's buffer over; the slot gets a new one when it is next used."""
        buffer = self[slot]
        del self._buffers[slot]
        return buffer


class Memory:
    """The buffers of one run.

    Attributes:
        program: The rank's program.
        own: Fields of the rank's own rows, by kind: q, kv and in the backward g.
        home: Accumulators of the rank's own rows, by kind: o, or dq and dkv.
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
        self._slots = slots
        self._contents: dict[int, Fields] = {}
        self._landed = [0] * len(program.versions)
        self._early: list[dict[int, Fields]] = [{} for _ in program.versions]
        self._locks = [threading.Lock() for _ in program.versions]
        for text, number in program.started.items():
            self._contents[number] = (residents or {})[text]

    def content(self, number: int) -> Fields:
        """Give the fields that hold a version: its slot, or the rank's accumulator."""
        version = self.program.versions[number]
        if version.slot is None:
            return self.home[version.item.kind]
        if number not in self._contents:
            self._contents[number] = version.layout.views(self._slots[version.slot])[0]
        return self._contents[number]

    def _holder(self, source: Source) -> Fields:
        return self.own[source.kind] if source.version is None else self.content(source.version)

    def load(self, source: Source) -> Fields:
        """Give what a read reads."""
        return source.window.load(self._holder(source))

    def message_to_send(self, step: Send) -> Tensor:
        """Give a transfer's message, packed unless it lies in a slot as it travels."""
        if step.whole is not None:
            slot = self.program.versions[step.whole].slot
            resident = self.program.versions[step.whole].resident
            if slot is not None and not resident:
                return self._slots[slot][: step.layout.nbytes]
        buffer = torch.empty(step.layout.nbytes, dtype=torch.uint8)
        for source, fields in zip(step.sources, step.layout.views(buffer), strict=True):
            for views, rows in source.window.pieces(self._holder(source)):
                for view, field in zip(views, fields, strict=True):
                    field[:, :, rows].copy_(view)
        return buffer

    def message_to_receive(self, step: Receive) -> Tensor:
        """Give the buffer that a transfer's message is received into."""
        if step.direct is not None:
            return self._slots[step.direct][: step.layout.nbytes]
        return torch.empty(step.layout.nbytes, dtype=torch.uint8)

    def arrived(self, step: Receive, message: Tensor) -> None:
        """Take in a message."""
        copied = (self.program.versions[sink.version].copied for sink in step.sinks)
        if step.direct is not None and all(copied):
            return  # it lies where it belongs
        for sink, fields in zip(step.sinks, step.layout.views(message), strict=True):
            version = self.program.versions[sink.version]
            if not version.copied:
                self.contribute(sink, fields, in_place=step.direct is not None)
            else:
                _copy(_everything(sink.layout), self.content(sink.version), fields)

    def contribute(self, sink: Sink, fields: Fields, *, in_place: bool = False) -> None:
        """Add to a partial result, now or when the contributions before it have landed.

        Args:
            sink: Where it goes.
            fields: The contribution, of the version's rectangle.
            in_place: Whether the fields already are the sink's slot.
        """
        number = sink.version
        with self._locks[number]:
            early = self._early[number]
            if self._landed[number] != sink.order:
                early[sink.order] = fields if in_place else self._stage(sink, fields)
                return
            held = in_place and sink.slot is None
            if not held:
                self._combine(number, fields)
            self._landed[number] += 1
            while self._landed[number] in early:
                self._combine(number, early.pop(self._landed[number]))
                self._landed[number] += 1

    def _stage(self, sink: Sink, fields: Fields) -> Fields:
        assert sink.slot is not None, "a contribution in place waits for those before it"
        if self._idle:
            return fields
        staged = sink.layout.views(self._slots[sink.slot])[0]
        _copy(_everything(sink.layout), staged, fields)
        return staged

    def _combine(self, number: int, fields: Fields) -> None:
        if self._idle:
            return
        version = self.program.versions[number]
        if self._landed[number] == 0:
            _copy(version.window, self.content(number), fields)
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


def _copy(window: Window, holder: Fields, fields: Fields) -> None:
    for views, rows in window.pieces(holder):
        for view, field in zip(views, fields, strict=True):
            view.copy_(field[:, :, rows])


def _everything(layout: Layout) -> Window:
    _, heads, rows = layout.items[0][0].shape[:3]
    return Window((0, heads), ((0, rows),))
