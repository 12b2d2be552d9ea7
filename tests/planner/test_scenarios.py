"""Scenarios are drawn from whole sequences, and groups of passes add up to the workload."""

from __future__ import annotations

import numpy as np
import pytest

from planner.routing import TraceArrays
from planner.scenarios import PassShape, Sequences, draw_counts, pass_shapes, split_sequences
from solvers.errors import DocumentError


def trace(*sequences: list[int], prompt: int = 2) -> TraceArrays:
    """One layer, one choice a token; the first ``prompt`` tokens of each sequence are prefill."""
    experts = np.array([e for one in sequences for e in one], dtype=np.uint16)
    lengths = [len(one) for one in sequences]
    places = [position for n in lengths for position in range(n)]
    position = np.array(places, dtype=np.int32)
    return TraceArrays(
        experts.reshape(-1, 1, 1),
        np.repeat(np.arange(len(lengths), dtype=np.int32), np.array(lengths, dtype=int)),
        position,
        (position >= prompt).astype(np.uint8),
    )


def test_shapes_add_up_to_the_workload() -> None:
    # 10 requests in groups of 4: two full groups and one of 2; 8 decode passes in 3 parts of
    # 2, 3 and 3 passes
    shapes = pass_shapes(requests=10, prompt_tokens=5, new_tokens=9, group=4, decode_passes=3)
    assert [(s.phase, s.group, s.sequences, s.weight) for s in shapes] == [
        ("prefill", 0, 4, 2),
        ("decode", 0, 4, 4),
        ("decode", 0, 4, 6),
        ("decode", 0, 4, 6),
        ("prefill", 1, 2, 1),
        ("decode", 1, 2, 2),
        ("decode", 1, 2, 3),
        ("decode", 1, 2, 3),
    ]
    # decode passes 0-1, 2-4 and 5-7 see contexts of 6-7, 8-10 and 11-13 tokens
    assert [s.context for s in shapes[1:4]] == [6, 9, 12]
    decoded = sum(s.weight * s.sequences for s in shapes if s.phase == "decode")
    assert decoded == 10 * 8


def test_no_decode_passes_for_one_new_token() -> None:
    shapes = pass_shapes(requests=3, prompt_tokens=5, new_tokens=1, group=8, decode_passes=3)
    assert shapes == (PassShape("prefill", 0, 3, 5, 1),)


def test_counts_follow_whole_sequences() -> None:
    # sequence 0 always chooses expert 0 in prefill and 1 in decode; sequence 1 chooses 2 and 3
    sequences = Sequences.of(trace([0, 0, 1, 1], [2, 2, 3, 3]), 4)
    shapes = (PassShape("prefill", 0, 2, 2, 1), PassShape("decode", 0, 2, 3, 1))
    counts = draw_counts(sequences, np.array([0, 1]), shapes, np.random.default_rng(0))
    assert counts[:, 0].tolist() == [[2, 0, 2, 0], [0, 1, 0, 1]]
    # both are drawn once before either is drawn twice
    wide = (PassShape("decode", 0, 5, 3, 1),)
    counts = draw_counts(sequences, np.array([0, 1]), wide, np.random.default_rng(0))
    assert sorted(counts[0, 0].tolist()) == [0, 0, 2, 3]


def test_decode_positions_are_consecutive_and_wrap() -> None:
    # decode tokens 1, 2, 3 in turn, from any start
    sequences = Sequences.of(trace([0, 0, 1, 2, 3]), 4)
    shapes = tuple(PassShape("decode", 0, 1, 3 + i, 1) for i in range(4))
    counts = draw_counts(sequences, np.array([0]), shapes, np.random.default_rng(3))
    chosen = counts[:, 0].argmax(axis=1).tolist()
    assert chosen in ([1, 2, 3, 1], [2, 3, 1, 2], [3, 1, 2, 3])


def test_short_prompts_are_repeated_and_long_ones_cut() -> None:
    sequences = Sequences.of(trace([0, 1, 2]), 4)
    counts = draw_counts(
        sequences, np.array([0]), (PassShape("prefill", 0, 1, 5, 1),), np.random.default_rng(0)
    )
    assert counts[0, 0].sum() == 5
    assert sorted(counts[0, 0].tolist()) == [0, 0, 2, 3]
    counts = draw_counts(
        sequences, np.array([0]), (PassShape("prefill", 0, 1, 1, 1),), np.random.default_rng(0)
    )
    assert counts[0, 0].sum() == 1


def test_sequences_of_one_phase_serve_both() -> None:
    sequences = Sequences.of(trace([0, 1], [2, 2, 3]), 4)
    assert sequences.prefill == ((0, 2), (2, 2))
    assert sequences.decode == ((0, 2), (4, 1))


def test_shares_weigh_sequences_equally() -> None:
    # decode: sequence 0 chooses 1 twice, sequence 1 chooses 3 once
    sequences = Sequences.of(trace([0, 0, 1, 1], [2, 2, 3]), 4)
    assert sequences.token_shares(np.array([0, 1])).tolist() == [[0.0, 0.5, 0.0, 0.5]]


def test_split_is_disjoint_and_repeatable() -> None:
    split = split_sequences(21, seed=4)
    assert len(split.fit) + len(split.choose) + len(split.judge) == 21
    assert len({*split.fit.tolist(), *split.choose.tolist(), *split.judge.tolist()}) == 21
    assert not split.shared
    assert split.fit.tolist() == split_sequences(21, seed=4).fit.tolist()
    assert split.fit.tolist() != split_sequences(21, seed=5).fit.tolist()


def test_few_sequences_are_shared() -> None:
    split = split_sequences(2, seed=0)
    assert split.shared
    assert sorted(split.fit.tolist()) == sorted(split.judge.tolist()) == [0, 1]


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(DocumentError, match="the routing trace is empty"):
        Sequences.of(trace(), 4)
