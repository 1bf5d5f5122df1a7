"""Workload flags: what they mean, how they combine, and what is refused."""

from __future__ import annotations

from argparse import ArgumentParser

import pytest

from charm_sched.commands.options import (
    WORKLOAD_FLAGS,
    add_workload_flags,
    names_workload,
    read_workload,
    workload_of,
)
from charm_sched.errors import WorkloadError
from charm_sched.workload import MODELS, Workload


def parse(line: str) -> Workload:
    return read_workload(parser().parse_args(line.split()))


def parser() -> ArgumentParser:
    made = ArgumentParser(prog="test", allow_abbrev=False)
    add_workload_flags(made)
    return made


def test_defaults() -> None:
    assert parse("") == Workload(seq_len=131072, heads=32, kv_heads=8, head_dim=128)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("--seq-len 2999", "seq_len", 2999),
        ("--seq-len 128K", "seq_len", 131072),
        ("--seq-len 128k", "seq_len", 131072),
        ("--mask window:4k", "mask", "window:4096"),
        ("--seq-len 1M", "seq_len", 1048576),
        ("--batch 3", "batch", 3),
        ("--dtype fp16", "dtype", "fp16"),
        ("--dtype fp64", "grad_dtype", "fp64"),
        ("--grad-dtype bf16", "grad_dtype", "bf16"),
        ("--model llama3-405b", "heads", 128),
        ("--model deepseek-v3-mha", "v_head_dim", 128),
        ("--heads 16", "kv_heads", 16),
        ("--heads 16 --kv-heads 4", "kv_heads", 4),
        ("--kv-heads 4", "heads", 32),
        ("--head-dim 64", "v_head_dim", 64),
        ("--head-dim 64", "kv_heads", 8),
        ("--head-dim 192 --v-head-dim 128", "v_head_dim", 128),
        ("--mask window:4K", "mask", "window:4096"),
        ("--mask full", "mask", "full"),
        ("--mask docs:1K,2999", "seq_len", 4023),
        ("--mask docs-full:1K,2999", "mask", "docs-full:1024,2999"),
        ("--mask docs:1K,1K --seq-len 2K", "mask", "docs:1024,1024"),
    ],
)
def test_one_flag(line: str, field: str, value: object) -> None:
    found = getattr(parse(line), field)
    assert (str(found) if field == "mask" else found) == value


@pytest.mark.parametrize("model", MODELS)
def test_models_make_workloads(model: str) -> None:
    made = parse(f"--model {model}")
    assert (made.heads, made.num_kv_heads) == (MODELS[model].heads, MODELS[model].kv_heads)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--model llama3-8b --heads 32", "--model llama3-8b fixes the heads; leave out --heads"),
        ("--mask docs:1K,1K --seq-len 4K", "hold 2K tokens in all, but --seq-len is 4K"),
        ("--heads 32 --kv-heads 5", "--kv-heads: expected a divisor of --heads 32, found 5"),
    ],
)
def test_contradictions_are_refused(line: str, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse(line)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--seq-len 12X", 'expected a token count such as "2999", "128K" or "1M"'),
        ("--seq-len 0", "expected a token count"),
        ("--batch 0", "expected a whole number of 1 or more, found '0'"),
        ("--batch -3", "expected a whole number of 1 or more, found '-3'"),
        ("--mask causl", "mask: expected full, causal, window:N"),
        ("--mask window", "mask: expected full"),
        ("--mask window:0", "expected a window of 1 token or more, such as window:512"),
        ("--mask docs:@lengths.txt", "lengths.txt: cannot be read: No such file or directory"),
        ("--mask blocks:@blocks.npy", "blocks.npy: cannot be read: No such file or directory"),
        ("--mask window:@lengths.txt", "expected a window of 1 token or more"),
        ("--mask causal:3", "mask: expected full"),
        ("--dtype int8", "invalid choice: 'int8'"),
        ("--model gpt-7", "invalid choice: 'gpt-7'"),
        ("--partition random", "invalid choice: 'random'"),
        ("--ranks 4 --devices a,b", "not allowed with argument"),
        ("--mask docs:4,0", "expected documents of 1 token or more, such as docs:512"),
        ("--devices a,,b", "expected names such as gpu0,gpu1"),
        ("--devices gpu3..1", "expected a range from a smaller to a larger number"),
        ("--devices gpu0..999999999", "expected at most 1000000 names"),
        ("--devices a0..9999/b0..9999", "expected at most 1000000 names"),
        ("--seq 4K", "unrecognized arguments: --seq"),
    ],
)
def test_misspellings_are_usage_errors(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(line.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


EXAMPLES = {
    "model": "llama3-8b", "seq_len": "8K", "dtype": "fp32", "grad_dtype": "fp32", "mask": "full",
    "partition": "zigzag", "devices": "a,b",
}  # fmt: skip


@pytest.mark.parametrize("flag", WORKLOAD_FLAGS)
def test_every_workload_flag_counts_as_one(flag: str) -> None:
    given = [f"--{flag.replace('_', '-')}", EXAMPLES.get(flag, "8")]
    assert names_workload(parser().parse_args(given))
    assert not names_workload(parser().parse_args([]))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu0..3", "gpu0 gpu1 gpu2 gpu3"),
        ("node0..1/gpu1..2,spare", "node0/gpu1 node0/gpu2 node1/gpu1 node1/gpu2 spare"),
        ("n08..10", "n08 n09 n10"),
        ("b, a", "b a"),
    ],
)
def test_ranges_of_devices(text: str, names: str) -> None:
    args = parser().parse_args(["--devices", text])
    assert list(args.devices) == names.split()


def test_contradictory_flags_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    made = parser()
    with pytest.raises(SystemExit) as caught:
        workload_of(made, made.parse_args(["--heads", "6", "--kv-heads", "4"]))
    assert caught.value.code == 2
    assert "--kv-heads: expected a divisor of --heads 6, found 4" in capsys.readouterr().err


def test_the_list_of_workload_flags_is_complete() -> None:
    assert set(vars(parser().parse_args([]))) == set(WORKLOAD_FLAGS)
