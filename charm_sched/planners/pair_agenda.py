"""The agenda of a backward in which every message is planned by itself, with its gradients.

Where ranks owe different amounts, messages that are planned alike for all ranks wait for the
longest of them. Here keys, values, kernels and gradients of all ranks are planned together, as one
list schedule over the machine's links (`dispatch`).
"""

from __future__ import annotations

import numpy as np

from charm_sched.planners.agenda import Agenda
from charm_sched.planners.dispatch import Dispatcher, Job, Message, Task
from charm_sched.planners.exchange import Step
from charm_sched.planners.hierarchy import Path, places_of
from charm_sched.planners.rules import plan_best
from charm_sched.planners.wires import Ways

MOST_RANKS_PAIRED = 16
"""With 32 it takes seconds, and messages that are planned alike were faster: decision 3."""
COPIES = 2
"""Lanes of a digit and direction where there is just one digit: one in its latency, one flowing."""


class PairAgenda(Agenda):
    """An agenda whose steps have a message of each rank."""

    def plan(self) -> None:
        """Plan all messages and attends."""
        self._tasks: list[Task] = []
        self._growth = self.b.workload.row_bytes("dkv") / self.b.workload.row_bytes("kv")
        self._list_keys()
        jobs = self._list_jobs()
        self._list_gradients(jobs)
        places, ways = places_of(self.machine.tree, self.b.num_ranks), Ways(self.b)
        copies = [COPIES if max(of) == 1 else 1 for of in places]
        self.groups = [np.array([rank]) for rank in self.b.ranks]

        def dispatcher(wait: float) -> Dispatcher:
            desks = [self.desk(rank) for rank in self.b.ranks.tolist()]
            return Dispatcher(ways, desks, places, copies, wait=wait)

        self.sittings = plan_best(self._tasks, dispatcher)
        lengths = [task.end - task.start for task in self._tasks if isinstance(task, Message)]
        self.slack = float(np.mean(lengths)) if lengths else 0.0

    def _message(self, step: Step, src: int, dst: int, size: float, back: bool) -> Message:
        line = step.line
        pace = self.machine.paces[line.depth]
        message = Message(
            src=src, dst=dst, depth=step.line.depth, size=size,
            seconds=pace.latency + size / pace.bandwidth, claims=self.crosses(line),
            crosses=line.crosses, back=back, sub=step.subs.start,
        )  # fmt: skip
        self._tasks.append(message)
        return message

    def _list_keys(self) -> None:
        """List the messages of keys and values, each after those that bring what it passes on."""
        brought: dict[tuple[int, Path, int], Message] = {}
        for step in self.steps:
            line = step.line
            sizes = (step.moves * self.cells.sizes[line.piece][:, step.cells]).sum(axis=1)
            for rank in np.flatnonzero(sizes).tolist():
                src = int(line.src[rank])
                message = self._message(step, src, rank, float(sizes[rank]), back=False)
                step.messages[rank] = message
                before = {
                    id(b): b for sub in step.subs if (b := brought.get((src, line.held, sub)))
                }
                for each in before.values():
                    message.follow(each)
                for sub in step.subs:
                    brought[rank, line.got, sub] = message

    def _list_jobs(self) -> dict[tuple[int, int, int], Job]:
        """List what ranks attend; give the job of each (rank, owner, cell)."""
        found: dict[tuple[int, int, int], Job] = {}
        for rank in self.b.ranks.tolist():
            for work, step in self.works(rank):
                job = Job(seconds=work.seconds + self.machine.overhead, rank=rank, work=work)
                self._tasks.append(job)
                if step:
                    job.follow(step.messages[rank])
                for number, cell in work.cells:
                    found[rank, self.owner(number, rank), cell] = job
        return found

    def _list_gradients(self, jobs: dict[tuple[int, int, int], Job]) -> None:
        """List the messages of gradients, each after the kernels and messages that add to it."""
        joining: dict[tuple[int, Path, int], list[Message]] = {}
        for step in sorted(self.returns, key=lambda step: -step.line.depth):
            line = step.line
            sizes = (step.takes * self.cells.sizes[line.piece][:, step.cells]).sum(axis=1)
            for rank in np.flatnonzero(sizes).tolist():
                owner, dst = int(line.piece[rank]), int(line.src[rank])
                message = self._message(
                    step, rank, dst, float(sizes[rank]) * self._growth, back=True
                )
                step.messages[rank] = message
                before: dict[int, Task] = {}
                for index in np.flatnonzero(step.takes[rank]).tolist():
                    if job := jobs.get((rank, owner, step.cells[index])):
                        before[id(job)] = job
                for sub in step.subs:
                    before.update((id(m), m) for m in joining.get((rank, line.got, sub), ()))
                    joining.setdefault((dst, line.held, sub), []).append(message)
                for each in before.values():
                    message.follow(each)


__all__ = ["MOST_RANKS_PAIRED", "PairAgenda"]
