"""Adapters: what they say without their library, and shards as Megatron cuts them."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charm_sched.errors import RuntimeFailure
from charm_sched.partition import Partition
from charm_sched.runtime.integrations import huggingface
from charm_sched.runtime.integrations.megatron import megatron_shards


@pytest.mark.parametrize("module", [None, ModuleType("transformers")], ids=["none", "old"])
def test_a_missing_or_old_library_is_named(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType | None
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", module)
    with pytest.raises(RuntimeFailure, match="expected Transformers 5 or later") as caught:
        huggingface.register()
    assert "pip install 'charm-sched[huggingface]'" in str(caught.value)


@given(ranks=st.integers(1, 5), chunks=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_megatrons_cut_is_that_of_documents(ranks: int, chunks: list[int]) -> None:
    lengths = [2 * ranks * chunk for chunk in chunks]
    offsets = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    assert megatron_shards(offsets, ranks) == Partition.per_document(lengths, ranks).shards
    whole = sum(lengths)
    assert megatron_shards([0, whole], ranks) == Partition.zigzag(whole, ranks).shards
    assert megatron_shards([0, whole + 1], ranks) is None
