"""The memory account, by hand for one small model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.documents import LayerPolicy, LayerSpec, ModelSpec, Policy, StoredShares, Workload
from planner.memory import (
    PURPOSES,
    account_device,
    attention_tile_rows,
    decode_bytes,
    default_head_tiling,
    expands_context,
    expert_tile_rows,
    outside_bytes,
    read_buffer_bytes,
    smallest_budget,
    smallest_policy,
    workspace_bytes,
)

HIDDEN, WIDTH, VOCABULARY = 256, 512, 3000
EXPERT_BYTES = 3 * HIDDEN * WIDTH * 2  # 786,432 = 192 blocks


def layer(index: int, **changes: int) -> LayerSpec:
    whole: dict[str, int] = {
        "attention_bytes": 4 * HIDDEN * HIDDEN * 2,
        "router_bytes": 8 * HIDDEN * 2,
        "norm_bytes": 2 * HIDDEN * 2,
        "shared_expert_bytes": 0,
        "mlp_bytes": 0,
        "experts": 8,
        "top_k": 2,
        "expert_bytes": EXPERT_BYTES,
        "expert_intermediate": WIDTH,
        "kv_bytes_per_token": 2 * 2 * 64 * 2,
        **changes,
    }
    return LayerSpec(index=index, **whole)


MODEL = ModelSpec(
    name="small",
    family="mixtral",
    dtype="bfloat16",
    dtype_bytes=2,
    hidden_size=HIDDEN,
    vocab_size=VOCABULARY,
    attention_heads=4,
    kv_heads=2,
    head_dim=64,
    max_context=1000,
    layers=(layer(0), layer(1)),
    embedding_bytes=VOCABULARY * HIDDEN * 2,
    head_bytes=VOCABULARY * HIDDEN * 2,
    final_norm_bytes=HIDDEN * 2,
    other_bytes=0,
    tied=False,
    parameters=1,
    active_parameters=1,
    bytes_source="headers",
    fingerprint="0" * 64,
)
WORKLOAD = Workload(requests=10, prompt_tokens=20, new_tokens=12)


def test_by_hand() -> None:
    policy = Policy(
        n_batches=3,
        batch_size=2,
        layers=(LayerPolicy(True, (0, 1, 2), ()), LayerPolicy(False, (4,), (0,))),
        head_tile_rows=1000,
        head_tiles=3,
        resident_head_tiles=1,
        slots=3,
        dense_slots=2,
        reserve=1,
        eviction="none",
        chunk_bytes=1 << 20,
    )
    account = account_device(MODEL, policy, WORKLOAD, 2, 123)
    by = account.by_purpose
    assert tuple(by) == PURPOSES
    assert account.capacity_bytes == 123
    # 524,288 + 4,096 + 1,024 = 529,408 bytes of tensors and 32 x 64 of alignment: 129.75 blocks
    assert by["dense"] == 130 * 4096
    assert by["dense_slots"] == 2 * 130 * 4096
    assert by["experts"] == 4 * 192 * 4096
    # a tile has 1,000 x 256 x 2 = 512,000 bytes, less than an expert
    assert by["slots"] == 3 * 192 * 4096
    # 512,000 bytes are 125 blocks; with the two it may share 127; the norm takes one
    assert by["head"] == 127 * 4096 + 4096
    # 6 sequences of 32 tokens, 2 layers of 512 bytes: 196,608 = 48 blocks
    assert by["kv"] == 48 * 4096
    # 120 tokens: twice 61,440 bytes (15 blocks), once 122,880 (30), and 120 x (96 + 64) (5)
    assert by["hidden"] == (15 + 15 + 30 + 5) * 4096
    # 6 x (2,000 + 3 x 256 x 6) = 39,648: 9.7 blocks
    assert by["logits"] == 10 * 4096
    # 1,536,000 bytes fit into the 2 MiB that are kept: 375 blocks; 16 reads of
    # 28 KiB (7 blocks) and the block that they share
    assert by["embedding"] == (375 + 16 * 8) * 4096
    assert account.peak_bytes == sum(by.values())


def test_a_compressed_store_needs_decoders() -> None:
    """Two steps of compressed bytes instead of a chunk; for each of two decoders a block, words of
    as much, exponents of half of it and half a MiB of zstandard's."""
    policy = replace(smallest_policy(MODEL, 2), chunk_bytes=256 << 10)
    stored = replace(MODEL, stored=StoredShares(0.7, 0.66, 0.66))
    plain, more = (
        account_device(model, policy, WORKLOAD, 2, 0).by_purpose for model in (MODEL, stored)
    )
    assert read_buffer_bytes(MODEL, policy) == (256 << 10) + 8192
    assert read_buffer_bytes(stored, policy) == 2 * ((1 << 20) + 8192)
    assert decode_bytes(MODEL) == 0
    assert decode_bytes(stored) == 2 * ((256 + 256 + 128 + 512) << 10)
    extra = decode_bytes(stored) + 2 * (1 << 20) + 8192 - (256 << 10)
    assert more["workspace"] - plain["workspace"] == extra
    assert {k: v for k, v in more.items() if k != "workspace"} == {
        k: v for k, v in plain.items() if k != "workspace"
    }


def test_a_group_is_no_larger_than_the_requests() -> None:
    policy = replace(smallest_policy(MODEL, 2), n_batches=4, batch_size=4)
    ten = account_device(MODEL, policy, WORKLOAD, 2, 0).by_purpose
    many = account_device(MODEL, policy, replace(WORKLOAD, requests=99), 2, 0).by_purpose
    # rounded up to blocks: 10 and 16 sequences of 32 tokens and 1,024 bytes a token
    assert ten["kv"] == 10 * 32 * 1024
    assert many["kv"] == 16 * 32 * 1024


@pytest.mark.parametrize(
    "more",
    [
        {"n_batches": 2},
        {"batch_size": 2},
        {"slots": 2},
        {"dense_slots": 2},
        {"resident_head_tiles": 1},
        {"chunk_bytes": 512 << 10},
        {"layers": (LayerPolicy(False, (3,), ()), LayerPolicy(False, (), ()))},
    ],
)
def test_the_smallest_policy_is_the_smallest(more: dict[str, object]) -> None:
    least = smallest_budget(MODEL, WORKLOAD, 2)
    policy = replace(smallest_policy(MODEL, 2), **more)  # type: ignore[arg-type]
    assert account_device(MODEL, policy, WORKLOAD, 2, 0).peak_bytes > least


def test_head_tiles_cover_the_vocabulary_evenly() -> None:
    rows, tiles = default_head_tiling(MODEL, 2)
    # an expert's 192 blocks less two hold 1,520 rows of 512 bytes: two tiles, of 1,500 each
    assert (rows, tiles) == (1500, 2)
    tiny = replace(MODEL, layers=(layer(0, expert_bytes=4096),))
    # not one row fits where two blocks are left aside: a row is the least that a tile can be
    assert default_head_tiling(tiny, 2) == (1, VOCABULARY)


def test_rows_computed_at_once() -> None:
    # at most 512 tokens at a time, or one sequence; in decode the whole batch
    assert attention_tile_rows(64, 20) == 512
    assert attention_tile_rows(3, 20) == 60
    assert attention_tile_rows(64, 700) == 700
    assert attention_tile_rows(900, 1) == 900
    # reduced precision: buckets below 128, powers of two above; float32 takes what there is
    assert [expert_tile_rows(n, 2) for n in (1, 3, 33, 49, 97, 128, 300, 5000)] == [
        1,
        4,
        48,
        64,
        128,
        128,
        256,
        1024,
    ]
    assert [expert_tile_rows(n, 4) for n in (3, 300, 5000)] == [3, 300, 1024]


def test_a_window_costs_memory_only_where_it_binds() -> None:
    policy = replace(smallest_policy(MODEL, 2), batch_size=4)
    long = replace(WORKLOAD, prompt_tokens=500)
    windowed = replace(MODEL, layers=tuple(replace(one, window=100) for one in MODEL.layers))
    wide = replace(MODEL, layers=tuple(replace(one, window=512) for one in MODEL.layers))
    peaks = [account_device(m, policy, long, 2, 0).peak_bytes for m in (MODEL, windowed, wide)]
    assert peaks[1] > peaks[0]
    assert peaks[2] == peaks[0]


def test_a_bias_of_the_head_stays_with_the_final_norm() -> None:
    model = replace(MODEL, head_bytes=MODEL.head_bytes + 2 * VOCABULARY)
    assert outside_bytes(MODEL) == 2 * HIDDEN
    assert outside_bytes(model) == 2 * HIDDEN + 2 * VOCABULARY
    head = account_device(model, smallest_policy(model, 2), WORKLOAD, 2, 0).by_purpose["head"]
    # 512 + 6,000 bytes: two blocks
    assert head == 2 * 4096


def test_latents_are_cached_small_and_expanded_large() -> None:
    """Latents of 40 values a token, where keys and values of the heads are 256."""
    latent = replace(
        MODEL, layers=tuple(replace(layer, kv_bytes_per_token=80) for layer in MODEL.layers)
    )
    assert (expands_context(MODEL), expands_context(latent)) == (False, True)
    assert expands_context(replace(MODEL, family="gpt_oss"))
    policy = replace(smallest_policy(latent, 4), batch_size=2)
    workload = Workload(requests=2, prompt_tokens=700, new_tokens=100)
    by = account_device(latent, policy, workload, 2, 0).by_purpose
    # 2 sequences of 800 tokens, 2 layers of 80 bytes: 256,000 = 62.5 blocks
    assert by["kv"] == 63 * 4096
    # scores of 700 x 700 for 4 heads, three times in float32 (23.5 MB), and 2 x 800 positions of
    # 256 values as 3 of 2 bytes and 3 of 4 (7.4 MB)
    more = by["workspace"] - account_device(MODEL, policy, workload, 2, 0).by_purpose["workspace"]
    assert more > 700 * 700 * 4 * 12 + 1600 * 256 * 18


def test_a_router_in_float32_copies_its_input() -> None:
    """Where the router is larger than everything else: 60,000 experts of 1 value."""
    wide = tuple(replace(one, experts=60000, expert_intermediate=1) for one in MODEL.layers)
    model = replace(MODEL, layers=wide)
    policy = replace(smallest_policy(model, 4), batch_size=10)
    workload = Workload(requests=10, prompt_tokens=1, new_tokens=1)
    workspace = workspace_bytes(model, policy, workload, 4)
    # 10 rows of 256 values and 60,000 scores, 8 tables of them; and the router's matrix
    assert workspace > 10 * (256 * 4 + 60000 * 32) + 60000 * 256 * 4
