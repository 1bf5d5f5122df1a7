"""What is to be computed: one attention layer, with its exact FLOPs and bytes.

Shapes are ``[batch, heads, tokens, head_dim]``. Bytes and FLOPs are counts for the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from charm_sched.errors import WorkloadError
from charm_sched.masks.mask import Mask, parse_mask

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of a published model: query heads, KV heads, head dims of q/k and of v."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int


# Read from each model's published configuration (config.json: num_attention_heads,
# num_key_value_heads, head_dim; DeepSeek-V3: qk_nope + qk_rope = 128 + 64, v_head_dim 128, as
# multi-head attention after the latent is expanded).
MODELS = {
    "llama3-8b": HeadShape(32, 8, 128, 128),
    "llama3-70b": HeadShape(64, 8, 128, 128),
    "llama3-405b": HeadShape(128, 8, 128, 128),
    "qwen3-32b": HeadShape(64, 8, 128, 128),
    "deepseek-v3-mha": HeadShape(128, 128, 192, 128),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One attention layer over one batch of sequences.

    Attributes:
        seq_len: Tokens in the whole sequence.
        batch: Sequences.
        heads: Query heads.
        kv_heads: Key/value heads; they divide ``heads``. None means as many as ``heads``.
        head_dim: Size of a query or key vector.
        v_head_dim: Size of a value vector; None means ``head_dim``.
        dtype: Of q, k, v and the output: bf16, fp16, fp32 or fp64.
        grad_dtype: Of partial results that travel: outputs and gradients to which more is added.
            None means fp32, or fp64 for fp64.
        mask: A `Mask`, or its text form.
        softmax_scale: None means ``head_dim ** -0.5``.

    Raises:
        WorkloadError: A count below 1, heads that do not divide, an unknown dtype or mask.
    """

    seq_len: int
    batch: int = 1
    heads: int = 32
    kv_heads: int | None = None
    head_dim: int = 128
    v_head_dim: int | None = None
    dtype: str = "bf16"
    grad_dtype: str | None = None
    mask: Mask | str = field(default_factory=lambda: Mask(kind="causal"))
    softmax_scale: float | None = None

    def __post_init__(self) -> None:
        def settle(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        if self.kv_heads is None:
            settle("kv_heads", self.heads)
        if self.v_head_dim is None:
            settle("v_head_dim", self.head_dim)
        if self.grad_dtype is None:
            settle("grad_dtype", "fp64" if self.dtype == "fp64" else "fp32")
        if isinstance(self.mask, str):
            settle("mask", parse_mask(self.mask))
        for name in ("seq_len", "batch", "heads", "kv_heads", "head_dim", "v_head_dim"):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise WorkloadError(
                    f"{name}: expected a whole number of 1 or more, found {count!r}"
                )
        for name in ("dtype", "grad_dtype"):
            if getattr(self, name) not in DTYPE_BYTES:
                known = ", ".join(DTYPE_BYTES)
                raise WorkloadError(f"{name}: expected {known}, found {getattr(self, name)!r}")
        if self.seq_len**2 * self.heads * self.batch >= 2**62:
            raise WorkloadError(
                f"seq_len {self.seq_len}: too long to count exactly with {self.heads} heads and "
                f"batch {self.batch}: expected seq_len^2 x heads x batch below 2^62"
            )
        if self.heads % self.num_kv_heads:
            raise WorkloadError(
                f"kv_heads: expected a divisor of heads = {self.heads}, found {self.kv_heads}"
            )
        if self.softmax_scale is not None and not 0 < self.softmax_scale < float("inf"):
            raise WorkloadError(
                f"softmax_scale: expected a positive number, found {self.softmax_scale!r}"
            )
        self.mask_rule.check_length(self.seq_len)

    @property
    def num_kv_heads(self) -> int:
        """KV heads, never None."""
        return self.kv_heads or self.heads

    @property
    def value_dim(self) -> int:
        """Size of a value vector, never None."""
        return self.v_head_dim or self.head_dim

    @property
    def mask_rule(self) -> Mask:
        """The mask as a `Mask`."""
        return parse_mask(self.mask) if isinstance(self.mask, str) else self.mask

    @property
    def wire_dtype(self) -> str:
        """Dtype of travelling partials, never None."""
        return self.grad_dtype or "fp32"

    @property
    def final_dtype(self) -> str:
        """Dtype of final results that travel: ``dtype``, or ``grad_dtype`` if that is smaller."""
        smaller = DTYPE_BYTES[self.wire_dtype] < DTYPE_BYTES[self.dtype]
        return self.wire_dtype if smaller else self.dtype

    @property
    def heads_per_kv(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.num_kv_heads

    @property
    def scale(self) -> float:
        """The softmax scale in force."""
        return self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale

    def flops_per_pair(self, direction: str) -> int:
        """FLOPs per unmasked (query, key) pair of one query head, whole batch.

        Forward: two products (scores, output). Backward: five (scores again, dP, dV, dQ, dK), the
        count of FlashAttention-2 (arXiv:2307.08691, section 2.3).
        """
        if direction == "forward":
            return 2 * self.batch * (self.head_dim + self.value_dim)
        return 2 * self.batch * (3 * self.head_dim + 2 * self.value_dim)

    def row_bytes(self, kind: str, *, final: bool = False) -> int:
        """Bytes on the wire of one token row of one head (a KV head for kv, dkv), whole batch.

        q, kv and the dout of g travel in ``dtype``; o, dq, dkv in ``grad_dtype``, or in
        `final_dtype` where they are ``final`` (see `plans.finals`); the log-sum-exp beside o, and
        the log-sum-exp and delta of g, in fp32 (fp64 for fp64).
        """
        size = DTYPE_BYTES[self.dtype]
        wire = DTYPE_BYTES[self.final_dtype if final else self.wire_dtype]
        statistic = max(4, size)
        per_row = {
            "q": self.head_dim * size,
            "kv": (self.head_dim + self.value_dim) * size,
            "o": self.value_dim * wire + statistic,
            "g": self.value_dim * size + 2 * statistic,
            "dq": self.head_dim * wire,
            "dkv": (self.head_dim + self.value_dim) * wire,
        }
        return self.batch * per_row[kind]

    def to_document(self) -> dict[str, object]:
        """Give a plain dict that `from_document` reads back."""
        document = {f.name: getattr(self, f.name) for f in fields(self)}
        document["mask"] = str(self.mask)
        return document

    @classmethod
    def from_document(cls, document: dict[str, object]) -> Workload:
        """Read what `to_document` wrote.

        Raises:
            WorkloadError: A key is missing or unknown, or a value is wrong.
        """
        known = {f.name for f in fields(cls)}
        if set(document) != known:
            odd = ", ".join(sorted(set(document) ^ known))
            raise WorkloadError(f"workload: expected the keys {sorted(known)}; check {odd}")
        try:
            return cls(**document)  # type: ignore[arg-type]
        except TypeError as error:
            raise WorkloadError(f"workload: {error}") from error
