"""Peak bytes of the device tier, purpose by purpose: one formula for planner and executor.

The planner constrains it, the checker recomputes it, and the executor reserves exactly these
amounts from its ledger before it loads anything; so a plan that was accepted does not run out.

Every term is an upper bound of what the executor's operations hold at one time. Weights lie in
units whose layout does not depend on where they were read from: an expert is ``gate | up | down``
without gaps, a dense part is its tensors one after another, each at a multiple of 64 bytes.
"""

from __future__ import annotations

from planner.documents import LayerPolicy, LayerSpec, MemoryAccount, ModelSpec, Policy, Workload
from planner.quantized import BLOCK_ROWS, expert_matrices, scratch_bytes

__all__ = [
    "ALIGNMENT_BYTES",
    "ATTENTION_TILE_ROWS",
    "BLOCK_BYTES",
    "CONTEXT_STEPS",
    "DECODERS",
    "DECODE_STEP_BYTES",
    "DENSE_TENSORS",
    "EMBEDDING_CACHE_BYTES",
    "EMBEDDING_READS",
    "EMBEDDING_SPAN_BYTES",
    "EXPANDED_TILE_ROWS",
    "EXPERT_TILE_ROWS",
    "PURPOSES",
    "ROUTER_TILE_ROWS",
    "ROW_BUCKETS",
    "TENSOR_ALIGNMENT_BYTES",
    "account_device",
    "aligned",
    "attention_tile_rows",
    "context_tokens",
    "decode_bytes",
    "default_head_tiling",
    "dense_slot_bytes",
    "embedding_bytes",
    "embedding_read_bytes",
    "expands_context",
    "expert_tile_rows",
    "group_sequences",
    "head_tile_bytes",
    "kept_tokens",
    "operation_bytes",
    "outside_bytes",
    "read_buffer_bytes",
    "slot_bytes",
    "smallest_budget",
    "smallest_policy",
    "workspace_bytes",
]

ALIGNMENT_BYTES = 4096
"""Granularity of direct reads, and so of every unit in a store and of every slot."""

TENSOR_ALIGNMENT_BYTES = 64
"""Where a tensor of a dense part may begin: a cache line."""

DENSE_TENSORS = 32
"""Most tensors that a dense part may have."""

EXPERT_TILE_ROWS = 1024
"""Most rows that one expert (or a dense MLP) computes at once; more are computed in tiles."""

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
"""Row counts below 128 with which an expert computes in reduced precision; above, powers of two."""

ATTENTION_TILE_ROWS = 512
"""In prefill a batch's attention is computed some sequences at a time, of at most this many tokens
together (one sequence at least), so that its workspace does not grow with the batch."""

EXPANDED_TILE_ROWS = 2048
"""In decode, where attention makes keys and values of every head anew or copies them, as many
sequences at a time as have so many positions together (one sequence at least)."""

CONTEXT_STEPS = 8
"""So many lengths of the context occur there in reduced precision."""

ROUTER_TILE_ROWS = 4096
"""Most rows that the router scores at once."""

EMBEDDING_CACHE_BYTES = 2 << 20
"""Embedding rows that are kept once read (all of them where they fit)."""

EMBEDDING_READS = 16
"""Reads of embedding rows in flight at once."""

EMBEDDING_SPAN_BYTES = 28 << 10
"""Rows that lie close together are read at once, up to so many bytes (one row at least)."""

BLOCK_BYTES = 256 << 10
"""Weights in a block of a compressed store (fewer in a unit's last)."""

DECODERS = 2
"""Threads that decode blocks while the next are read."""

DECODE_STEP_BYTES = 1 << 20
"""Most compressed bytes that are read at once; two such steps have a buffer."""

_ZSTD_BYTES = 512 << 10
"""Most that zstandard keeps for one thread (its context has 94 KiB; the rest would be windows)."""

_SINKS = ("gpt_oss",)

PURPOSES = (
    "dense",
    "dense_slots",
    "experts",
    "slots",
    "head",
    "kv",
    "hidden",
    "workspace",
    "logits",
    "embedding",
)
"""The purposes of the device account, in the order in which they are reserved."""

_MKL_BYTES = 56 << 20
"""Most that MKL keeps for packed matrices in float32 (measured: 48 MiB with two threads,
56 with eight)."""

_GENERATED_BYTES = 768 << 10
"""Code that oneDNN generates and keeps for each shape of a product in reduced precision (measured:
0.7 MiB)."""

_OTHER_SHAPES = 20
"""Shapes of products besides the experts': three of projections, each for a full and a last tile of
prefill at two lengths and for a full and a last batch of decode; and two of the head."""


def aligned(size_bytes: int) -> int:
    """``size_bytes`` rounded up to the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def context_tokens(workload: Workload) -> int:
    """Tokens of one sequence at its longest."""
    return workload.prompt_tokens + workload.new_tokens


def kept_tokens(workload: Workload) -> int:
    """KV positions that one sequence needs at its longest: all, or its first tokens and as many of
    the last as attention sees."""
    context = context_tokens(workload)
    if workload.attention_window is None:
        return context
    return min((workload.attention_sinks or 0) + workload.attention_window, context)


def group_sequences(policy: Policy, workload: Workload) -> int:
    """Sequences of the largest group: n x b, or all requests where they are fewer."""
    return min(policy.n_batches * policy.batch_size, workload.requests)


def attention_tile_rows(batch_size: int, prompt_tokens: int) -> int:
    """Most rows (tokens) that attention computes at once, in prefill or decode, for prompts of up
    to ``prompt_tokens``."""
    return max(min(batch_size * prompt_tokens, max(ATTENTION_TILE_ROWS, prompt_tokens)), batch_size)


def expands_context(model: ModelSpec) -> bool:
    """Whether attention makes keys and values of every head anew in each pass, and all scores at
    once: from latents (they are smaller than the heads' keys and values), or to add sinks."""
    whole = 2 * model.kv_heads * model.head_dim * model.dtype_bytes
    latent = any(layer.kv_bytes_per_token < whole for layer in model.layers)
    return latent or model.family in _SINKS


def head_tile_bytes(model: ModelSpec, tile_rows: int, dtype_bytes: int) -> int:
    """Device bytes of one head tile (``tile_rows`` x hidden), with the blocks it shares."""
    return aligned(tile_rows * model.hidden_size * dtype_bytes + 2 * ALIGNMENT_BYTES)


def outside_bytes(model: ModelSpec) -> int:
    """Bytes of the final norm and of the head's bias: both are always there."""
    bias = model.head_bytes % (model.vocab_size * model.hidden_size * model.dtype_bytes)
    return model.final_norm_bytes + bias


def slot_bytes(model: ModelSpec, tile_rows: int, dtype_bytes: int) -> int:
    """Device bytes of one streaming slot: the largest expert or head tile."""
    expert = max(layer.expert_bytes for layer in model.layers)
    return max(aligned(expert), head_tile_bytes(model, tile_rows, dtype_bytes))


def dense_slot_bytes(model: ModelSpec, layer: int) -> int:
    """Device bytes of one layer's dense part."""
    return aligned(model.layers[layer].dense_bytes + DENSE_TENSORS * TENSOR_ALIGNMENT_BYTES)


def embedding_bytes(model: ModelSpec) -> int:
    """Device bytes for embedding rows: those kept, and those being read."""
    return aligned(min(model.embedding_bytes, EMBEDDING_CACHE_BYTES)) + embedding_read_bytes(model)


def embedding_read_bytes(model: ModelSpec) -> int:
    """Buffers through which embedding rows reach their place, one for each read in flight."""
    row = aligned(model.embedding_bytes // model.vocab_size) + ALIGNMENT_BYTES
    whole = min(model.embedding_bytes, EMBEDDING_SPAN_BYTES)
    return EMBEDDING_READS * max(aligned(whole) + ALIGNMENT_BYTES, row)


def read_buffer_bytes(model: ModelSpec, policy: Policy) -> int:
    """Buffer through which a checkpoint's unaligned tensors reach their slots, or compressed blocks
    the decoders."""
    if model.stored is not None:
        return 2 * (DECODE_STEP_BYTES + 2 * ALIGNMENT_BYTES)
    largest = max(
        max(max(layer.dense_bytes, layer.expert_bytes) for layer in model.layers),
        policy.head_tile_rows * model.hidden_size * model.dtype_bytes,
    )
    return aligned(min(policy.chunk_bytes, largest)) + 2 * ALIGNMENT_BYTES


def decode_bytes(model: ModelSpec) -> int:
    """What the decoders of a compressed store work in: each has a block, as many bytes for words
    that are being put together, and half as many for exponents."""
    if model.stored is None:
        return 0
    return DECODERS * (BLOCK_BYTES * 5 // 2 + _ZSTD_BYTES)


def account_device(
    model: ModelSpec, policy: Policy, workload: Workload, dtype_bytes: int, capacity_bytes: int
) -> MemoryAccount:
    """Peak bytes of the device tier for ``policy``, in prefill and in decode.

    Parameters
    ----------
    model, policy, workload
        What runs.
    dtype_bytes
        Width of the computing type.
    capacity_bytes
        The budget.

    Returns
    -------
    MemoryAccount
        ``dense`` (resident dense parts), ``dense_slots``, ``experts`` (residents), ``slots``,
        ``head`` (resident tiles and the final norm), ``kv`` (of the whole group at its longest),
        ``hidden`` (residual stream, expert input, expert sum in float32, routing),
        ``workspace`` (the largest operation's temporaries, the read buffer and decoders),
        ``logits``, ``embedding``.
    """
    sequences = group_sequences(policy, workload)
    streamed = [
        dense_slot_bytes(model, index)
        for index, layer in enumerate(policy.layers)
        if not layer.dense_resident
    ]
    by_purpose = {
        "dense": sum(
            dense_slot_bytes(model, index)
            for index, layer in enumerate(policy.layers)
            if layer.dense_resident
        ),
        "dense_slots": policy.dense_slots * max(streamed, default=0),
        "experts": sum(
            len(layer.resident) * aligned(spec.expert_bytes)
            for layer, spec in zip(policy.layers, model.layers, strict=True)
        ),
        "slots": policy.slots * slot_bytes(model, policy.head_tile_rows, dtype_bytes),
        "head": policy.resident_head_tiles
        * head_tile_bytes(model, policy.head_tile_rows, dtype_bytes)
        + aligned(outside_bytes(model)),
        "kv": aligned(
            sequences
            * kept_tokens(workload)
            * sum(_kv_bytes(model, layer, dtype_bytes) for layer in model.layers)
        ),
        "hidden": _hidden_bytes(model, sequences * workload.prompt_tokens, dtype_bytes),
        "workspace": workspace_bytes(model, policy, workload, dtype_bytes)
        + read_buffer_bytes(model, policy)
        + decode_bytes(model),
        "logits": aligned(
            sequences
            * (policy.head_tile_rows * dtype_bytes + 3 * model.hidden_size * (dtype_bytes + 4))
        ),
        "embedding": embedding_bytes(model),
    }
    return MemoryAccount(capacity_bytes=capacity_bytes, by_purpose=by_purpose)


def _kv_bytes(model: ModelSpec, layer: LayerSpec, dtype_bytes: int) -> int:
    # the specification counts in the storage type; keys and values are kept in the computing type
    return layer.kv_bytes_per_token // model.dtype_bytes * dtype_bytes


def _hidden_bytes(model: ModelSpec, tokens: int, dtype_bytes: int) -> int:
    """What the group's tokens hold through a layer of prefill."""
    top_k = max(layer.top_k for layer in model.layers)
    values = tokens * model.hidden_size
    # residual and expert input in the computing type, sum over experts in float32;
    # of each choice its expert, weight, place in the order, token, and the sort's own copies;
    # and the token's number, a few times over
    bookkeeping = tokens * (top_k * 48 + 64)
    return 2 * aligned(values * dtype_bytes) + aligned(values * 4) + aligned(bookkeeping)


def workspace_bytes(model: ModelSpec, policy: Policy, workload: Workload, dtype_bytes: int) -> int:
    """Temporaries of the largest operation, as operations run one at a time, and what the
    libraries behind them keep."""
    tokens = group_sequences(policy, workload) * workload.prompt_tokens
    return aligned(
        _library_bytes(model, policy, tokens, dtype_bytes)
        + operation_bytes(model, policy, workload, dtype_bytes)
    )


def operation_bytes(model: ModelSpec, policy: Policy, workload: Workload, dtype_bytes: int) -> int:
    """Temporaries of the largest operation."""
    tokens = group_sequences(policy, workload) * workload.prompt_tokens
    return max(
        _attention_bytes(model, policy, workload, dtype_bytes),
        max(_feed_forward_bytes(model, layer, tokens, dtype_bytes) for layer in model.layers),
        max(_router_bytes(model, layer, tokens, dtype_bytes) for layer in model.layers),
    )


def _router_bytes(model: ModelSpec, layer: LayerSpec, tokens: int, dtype_bytes: int) -> int:
    """Scores and choices; in float32 with groups some tables more, and copies of rows and router,
    for fewer rows at once."""
    plain = layer.experts * (2 * dtype_bytes + 2 * 4) + layer.top_k * 2 * 8
    grouped = model.hidden_size * 4 + layer.experts * 8 * 4 + layer.top_k * 3 * 8
    return max(
        min(tokens, ROUTER_TILE_ROWS) * plain,
        min(tokens, EXPERT_TILE_ROWS) * grouped + layer.experts * model.hidden_size * 4,
    )


def _library_bytes(model: ModelSpec, policy: Policy, tokens: int, dtype_bytes: int) -> int:
    if dtype_bytes < 4:
        rows = expert_tile_rows(tokens, dtype_bytes)
        shapes = sum(bucket <= rows for bucket in ROW_BUCKETS)
        # powers of two above the buckets
        shapes += max(rows.bit_length() - ROW_BUCKETS[-1].bit_length(), 0)
        # shared experts: gate and up of one shape, down of another, a switch
        shapes += 3 if any(layer.shared_expert_bytes for layer in model.layers) else 0
        # products with the whole context in sight, of so many lengths, for two sizes of a batch;
        # and two projections more
        shapes += 2 * CONTEXT_STEPS + 6 if expands_context(model) else 0
        # the last tile of quantized experts may have rows of its own
        shapes *= 2 if _odd_tiles(model) else 1
        return _GENERATED_BYTES * (2 * shapes + _OTHER_SHAPES)
    width = max(
        2 * max(layer.expert_intermediate for layer in model.layers),
        max(_mlp_width(model, layer) for layer in model.layers),
        model.attention_heads * model.head_dim,
        policy.head_tile_rows,
    )
    return min(2 * width * model.hidden_size * dtype_bytes, _MKL_BYTES)


def _odd_tiles(model: ModelSpec) -> bool:
    return model.quantized is not None and any(
        rows % BLOCK_ROWS for layer in model.layers for rows, _ in expert_matrices(model, layer)
    )


def _mlp_width(model: ModelSpec, layer: LayerSpec) -> int:
    """Width of the wider of a layer's dense MLP and shared expert."""
    per_unit = 3 * model.hidden_size * model.dtype_bytes
    return max(layer.mlp_bytes, layer.shared_expert_bytes) // per_unit


def _attention_bytes(model: ModelSpec, policy: Policy, workload: Workload, dtype_bytes: int) -> int:
    """One batch's norms, projections, rotary embedding and attention."""
    prompt, context = workload.prompt_tokens, kept_tokens(workload)
    rows = attention_tile_rows(policy.batch_size, prompt)
    query = model.attention_heads * model.head_dim
    key_value = 2 * model.kv_heads * model.head_dim
    # a norm works in float32: its input, square and product; then in the computing type
    norm = 3 * 4 + 2 * dtype_bytes
    per_row = (
        model.hidden_size * (norm + 2 * dtype_bytes)
        + (query + key_value) * dtype_bytes
        + query * max(norm, 5 * dtype_bytes)
        + model.head_dim * (2 * dtype_bytes + 4 * 4)
    )
    # decode: a mask over the context for each sequence, as booleans and as numbers
    mask = policy.batch_size * context * (1 + 4 + dtype_bytes)
    # blocks of scores, in each of two threads
    blocks = 2 * min(prompt, 256) * (min(prompt, 512) + model.head_dim) * (4 + dtype_bytes)
    hides = context < context_tokens(workload)
    if hides or any(layer.window is not None and layer.window < context for layer in model.layers):
        # a window needs a mask in prefill, and with a mask shared heads are repeated
        mask += prompt * prompt * (8 + 2 + 4 + dtype_bytes)
        per_row += 2 * query * dtype_bytes
    if hides:
        # what is kept of a prompt is gathered
        per_row += key_value * dtype_bytes + 4 * 8
    if expands_context(model):
        # three tables of scores in float32; keys and values of each position, and their copies
        mask += prompt * prompt * (8 + 2 + 4 + dtype_bytes)
        scores = max(rows * prompt, policy.batch_size * context) * model.attention_heads * 3 * 4
        positions = max(min(policy.batch_size * context, EXPANDED_TILE_ROWS), context, rows)
        return rows * per_row + mask + scores + positions * query * (3 * dtype_bytes + 3 * 4)
    return rows * per_row + mask + blocks


def expert_tile_rows(tokens: int, dtype_bytes: int) -> int:
    """Most rows that an expert computes at once when ``tokens`` could all choose it."""
    if tokens >= EXPERT_TILE_ROWS or dtype_bytes >= 4:
        return min(tokens, EXPERT_TILE_ROWS)
    if tokens >= ROW_BUCKETS[-1]:
        return 1 << (tokens.bit_length() - 1)
    return next(bucket for bucket in ROW_BUCKETS if bucket >= tokens)


def _feed_forward_bytes(model: ModelSpec, layer: LayerSpec, tokens: int, dtype_bytes: int) -> int:
    """One tile of an expert or a dense MLP: rows in, gate and up, rows out, and in float32; and
    what quantized weights are made numbers in."""
    width = max(layer.expert_intermediate, _mlp_width(model, layer))
    rows = max(expert_tile_rows(tokens, dtype_bytes), min(tokens, EXPERT_TILE_ROWS))
    tile = rows * (2 * (model.hidden_size + width) * dtype_bytes + model.hidden_size * 4)
    return tile + scratch_bytes(model, layer, dtype_bytes)


def default_head_tiling(model: ModelSpec, dtype_bytes: int) -> tuple[int, int]:
    """Rows of a head tile and number of tiles, so that a tile fits where an expert does."""
    row_bytes = model.hidden_size * dtype_bytes
    room = aligned(max(layer.expert_bytes for layer in model.layers)) - 2 * ALIGNMENT_BYTES
    rows = min(max(room // row_bytes, 1), model.vocab_size)
    tiles = -(-model.vocab_size // rows)
    # as even as they can be, so that no tile is a sliver
    rows = -(-model.vocab_size // tiles)
    return rows, tiles


def smallest_policy(model: ModelSpec, dtype_bytes: int) -> Policy:
    """The policy that needs the least memory: one sequence, one slot of each kind, no residents."""
    rows, tiles = default_head_tiling(model, dtype_bytes)
    return Policy(
        n_batches=1,
        batch_size=1,
        layers=tuple(LayerPolicy(False, (), ()) for _ in model.layers),
        head_tile_rows=rows,
        head_tiles=tiles,
        resident_head_tiles=0,
        slots=1,
        dense_slots=1,
        reserve=1,
        eviction="none",
        chunk_bytes=256 << 10,
    )


def smallest_budget(model: ModelSpec, workload: Workload, dtype_bytes: int) -> int:
    """The smallest device budget, in bytes, under which ``workload`` runs at all."""
    policy = smallest_policy(model, dtype_bytes)
    return account_device(model, policy, workload, dtype_bytes, 0).peak_bytes
