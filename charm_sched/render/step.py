"""A training step on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from charm_sched.planners.external import short_name
from charm_sched.render.tables import fitting
from charm_sched.units import format_seconds, format_tokens

if TYPE_CHECKING:
    from rich.console import Console

    from charm_sched.what_if.training_step import StepCase, TrainingStep

STEP_HEAD = ("attention by", "attention", "the rest", "step", "tokens/s", "vs ring")


def show_step(console: Console, step: TrainingStep) -> None:
    """Print attention, the rest and the step, beside Ring-Attention and the bound."""
    console.print(Text(f"\n{step_title(step)}", style="bold"))
    rows = step_rows(step)
    console.print(Padding(fitting(STEP_HEAD, rows, console.width - 2), (0, 0, 0, 2)))
    for line in (verdict(step), *(f"Assumed: {text}." for text in step.assumptions)):
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    note = (
        "The rest are all products with weights, forward and backward. Norms, the optimiser and "
        "the exchange of weights and their gradients are not counted."
    )
    console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))


def step_title(step: TrainingStep) -> str:
    """Name the step."""
    tokens = format_tokens(step.tokens)
    return f"Training step of {step.model}: {step.layers} layers, {tokens} tokens"


def step_rows(step: TrainingStep) -> list[tuple[str, ...]]:
    """Give the rows of its table, under `STEP_HEAD`."""
    return [_cells(case, step) for case in (step.ring, step.chosen, step.limit)]


def _cells(case: StepCase, step: TrainingStep) -> tuple[str, ...]:
    return (
        short_name(case.label),
        format_seconds(case.attention, digits=3),
        format_seconds(case.rest, digits=3),
        format_seconds(case.seconds, digits=3),
        f"{step.tokens / case.seconds:,.0f}",
        f"{step.ring.seconds / case.seconds:.2f}x",
    )


def verdict(step: TrainingStep) -> str:
    """Say what the gain in attention is worth in the whole step."""
    alone = step.ring.attention / step.chosen.attention
    whole = step.ring.seconds / step.chosen.seconds
    share = step.chosen.attention / step.chosen.seconds
    return (
        f"Attention is {share:.0%} of the step: {alone:.2f} times as fast as Ring-Attention, it "
        f"makes the whole step {whole:.2f} times as fast."
    )


__all__ = ["STEP_HEAD", "show_step", "step_rows", "step_title", "verdict"]
