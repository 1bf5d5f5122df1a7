"""What stands around attention in published models: weights that each token is multiplied with.

From each model's published configuration (config.json): hidden_size, intermediate_size,
num_hidden_layers, vocab_size; DeepSeek-V3: q_lora_rank 1536, kv_lora_rank 512, 64 of the head
dimension rotary, 8 of 256 experts of 2048 and one shared one, 3 dense layers of 18432.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from charm_sched.workload import MODELS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayers:
    """A model's layers.

    Attributes:
        layers: How many.
        projections: Weights of a layer that make q, k, v and the layer's output of attention.
        feed_forward: Weights of a layer's feed-forward part that a token meets; the mean over all
            layers.
        head: Weights from the last layer to the vocabulary.
    """

    layers: int
    projections: int
    feed_forward: int
    head: int

    @property
    def weights(self) -> int:
        """Weights of one layer that a token meets."""
        return self.projections + self.feed_forward


def _gated(name: str, *, layers: int, hidden: int, ffn: int, vocabulary: int) -> ModelLayers:
    """Give a model with a gated feed-forward part: three matrices of hidden x ffn."""
    shape = MODELS[name]
    inner = shape.heads * shape.head_dim
    keys = 2 * shape.kv_heads * shape.head_dim
    return ModelLayers(
        layers=layers,
        projections=hidden * (inner + keys) + inner * hidden,
        feed_forward=3 * hidden * ffn,
        head=hidden * vocabulary,
    )


def _deepseek() -> ModelLayers:
    hidden, heads, layers, dense = 7168, 128, 61, 3
    queries = hidden * 1536 + 1536 * heads * 192
    keys = hidden * (512 + 64) + 512 * heads * (128 + 128)
    experts = (layers - dense) * (9 * 3 * hidden * 2048 + hidden * 256)
    return ModelLayers(
        layers=layers,
        projections=queries + keys + heads * 128 * hidden,
        feed_forward=(dense * 3 * hidden * 18432 + experts) // layers,
        head=hidden * 129280,
    )


def model_layers() -> Mapping[str, ModelLayers]:
    """Give the layers of every model whose heads are known."""
    return {
        "llama3-8b": _gated("llama3-8b", layers=32, hidden=4096, ffn=14336, vocabulary=128256),
        "llama3-70b": _gated("llama3-70b", layers=80, hidden=8192, ffn=28672, vocabulary=128256),
        "llama3-405b": _gated(
            "llama3-405b", layers=126, hidden=16384, ffn=53248, vocabulary=128256
        ),
        "qwen3-32b": _gated("qwen3-32b", layers=64, hidden=5120, ffn=25600, vocabulary=151936),
        "deepseek-v3-mha": _deepseek(),
    }


__all__ = ["ModelLayers", "model_layers"]
