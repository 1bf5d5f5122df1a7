"""Masks that change, and attention inside a model, on real processes over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_distributed import results, spawn

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_mask_may_change_with_every_batch(ranks: int, tmp_path: Path) -> None:
    found = results(spawn("changing_masks", ranks, tmp_path))[0]
    assert len(found) == 16
    assert max(found) < 1e-10, found


def test_every_rank_hears_what_is_wrong_with_a_mask(tmp_path: Path) -> None:
    for rank, heard in enumerate(results(spawn("refused_masks", 3, tmp_path))):
        shows_more, differ, dropout, offsets = heard
        assert "was made for the mask causal and cannot serve full: coverage: " in shows_more
        assert differ.startswith(f"rank {rank}: the mask of rank 1 differs from the others'")
        assert "24,24" in differ
        assert "24,12" in differ
        assert "dropout_p: expected 0, found 0.1" in dropout
        assert "end at token 99, but the sequence length is 48" in offsets


@pytest.mark.parametrize("save", ["no", "yes"])
def test_attention_composes(save: str, tmp_path: Path) -> None:
    """Two layers: recomputed, accumulated, without gradients, and against one device."""
    for found in results(spawn("composed", 4, tmp_path, save=save)):
        assert found["no_grad"] == found["inference_mode"] == 0.0
        assert found["checkpoint"] == 0.0, found
        assert found["accumulation"] < 1e-5, found
        assert found["one device"] < 1e-5, found


def test_one_dimension_of_a_mesh_is_a_group(tmp_path: Path) -> None:
    for found in results(spawn("meshed", 4, tmp_path)):
        assert max(found["errors"].values()) < 1e-10, found
        assert "expected one dimension of the mesh, found dp, cp" in found["refused"]
        assert "as in mesh['cp']" in found["refused"]
