"""Which rank of a group computes which heads, and in which chunks.

Query heads are dealt to the members of a group in runs that differ by at most one head. A run's KV
heads go with it: where several members need one KV head, each of them gets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from charm_sched.partition import split_rows

Heads = tuple[int, int]


@dataclass(frozen=True, slots=True)
class KeyHeads:
    """A run of KV heads that every member of the group uses whole or not at all.

    Attributes:
        heads: First and past-the-last KV head.
        chunk: The first chunk of the member that needs it, with which it arrives.
        place: Its place among what arrives with that chunk.
    """

    heads: Heads
    chunk: int
    place: int


@dataclass(frozen=True, kw_only=True)
class HeadChunks:
    """Heads of each member of a group, in chunks.

    Attributes:
        queries: Query heads of each (member, chunk); None where a member has fewer chunks.
        keys: KV heads that the queries of each (member, chunk) need.
        arrivals: Those among them that no earlier chunk of the member needs.
        runs: Chunks that follow each other and share KV heads on some member; no two runs of a
            member share any.
        replicated: KV heads that more than one member needs.
    """

    queries: tuple[tuple[Heads | None, ...], ...]
    keys: tuple[tuple[tuple[KeyHeads, ...], ...], ...]
    arrivals: tuple[tuple[tuple[KeyHeads, ...], ...], ...]
    runs: tuple[tuple[int, ...], ...]
    replicated: frozenset[Heads]


def chunk_heads(heads: int, kv_heads: int, members: int, chunks: int) -> HeadChunks:
    """Deal heads to the members of a group.

    Args:
        heads: Query heads, at least as many as ``members``.
        kv_heads: KV heads; they divide ``heads``.
        members: Ranks in the group.
        chunks: Chunks of each member; a member with fewer query heads has fewer.

    >>> chunk_heads(7, 7, 4, 1).queries
    (((0, 2),), ((2, 4),), ((4, 6),), ((6, 7),))
    """
    queries = tuple(
        tuple(run[0] if run else None for run in split_rows(whole, chunks))
        for whole in split_rows(((0, heads),), members)
    )
    share = heads // kv_heads
    needs = [
        [(run[0] // share, -(-run[1] // share)) if run else (0, 0) for run in member]
        for member in queries
    ]
    cuts = sorted({cut for member in needs for run in member for cut in run})
    # Gradients of one shard's KV meet at home and on shared ranks: equal or disjoint runs of heads.
    pieces = list(pairwise(cuts))
    keys = tuple(_keys_of(member, pieces) for member in needs)
    users = [{key.heads for chunk in member for key in chunk} for member in keys]
    return HeadChunks(
        queries=queries,
        keys=keys,
        arrivals=tuple(
            tuple(
                tuple(key for key in chunk if key.chunk == number)
                for number, chunk in enumerate(member)
            )
            for member in keys
        ),
        runs=_runs(keys, chunks),
        replicated=frozenset(piece for piece in pieces if sum(piece in used for used in users) > 1),
    )


def _keys_of(runs: list[Heads], pieces: list[Heads]) -> tuple[tuple[KeyHeads, ...], ...]:
    """List what each chunk of one member needs."""
    known: dict[Heads, KeyHeads] = {}
    chunks = []
    for chunk, (low, high) in enumerate(runs):
        needed = [piece for piece in pieces if low <= piece[0] and piece[1] <= high]
        fresh = [piece for piece in needed if piece not in known]
        known |= {piece: KeyHeads(piece, chunk, place) for place, piece in enumerate(fresh)}
        chunks.append(tuple(known[piece] for piece in needed))
    return tuple(chunks)


def _runs(
    keys: tuple[tuple[tuple[KeyHeads, ...], ...], ...], chunks: int
) -> tuple[tuple[int, ...], ...]:
    """Put chunks that share KV heads with the chunk before into its run."""
    runs = [[0]]
    for chunk in range(1, chunks):
        if any(key.chunk < chunk for member in keys for key in member[chunk]):
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return tuple(tuple(run) for run in runs)
