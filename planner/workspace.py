"""What of a pass is computed at once, and the temporaries that this takes.

Operations run one at a time, in tiles, so that what they hold does not grow with the work. Every
term is an upper bound; ``planner.memory`` accounts for them.
"""

from __future__ import annotations

from planner.documents import LayerSpec, ModelSpec, Policy, Workload
from planner.quantized import BLOCK_ROWS, expert_matrices, quantized_forms, scratch_bytes
from planner.span import context_tokens, kept_tokens

__all__ = [
    "ALIGNMENT_BYTES",
    "ATTENTION_TILE_ROWS",
    "CONTEXT_STEPS",
    "EXPANDED_TILE_ROWS",
    "EXPERT_TILE_ROWS",
    "ROUTER_TILE_ROWS",
    "ROW_BUCKETS",
    "aligned",
    "attention_tile_rows",
    "expands_context",
    "expert_tile_rows",
    "group_sequences",
    "library_bytes",
    "operation_bytes",
]

ALIGNMENT_BYTES = 4096
"""Granularity of direct reads, and so of every unit in a store and of every slot."""

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

_TABLES = ("gpt_oss", "switch_transformers")
"""Families that add to the scores: sinks, or position biases."""

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


def group_sequences(policy: Policy, workload: Workload) -> int:
    """Sequences of the largest group: n x b, or all requests where they are fewer."""
    return min(policy.n_batches * policy.batch_size, workload.requests)


def attention_tile_rows(batch_size: int, prompt_tokens: int) -> int:
    """Most rows (tokens) that attention computes at once, in prefill or decode, for prompts of up
    to ``prompt_tokens``."""
    return max(min(batch_size * prompt_tokens, max(ATTENTION_TILE_ROWS, prompt_tokens)), batch_size)


def expert_tile_rows(tokens: int, dtype_bytes: int) -> int:
    """Most rows that an expert computes at once when ``tokens`` could all choose it."""
    if tokens >= EXPERT_TILE_ROWS or dtype_bytes >= 4:
        return min(tokens, EXPERT_TILE_ROWS)
    if tokens >= ROW_BUCKETS[-1]:
        return 1 << (tokens.bit_length() - 1)
    return next(bucket for bucket in ROW_BUCKETS if bucket >= tokens)


def expands_context(model: ModelSpec) -> bool:
    """Whether attention makes keys and values of every head anew in each pass, and all scores at
    once: from latents (they are smaller than the heads' keys and values), or to add to them."""
    whole = 2 * model.kv_heads * model.head_dim * model.dtype_bytes
    decoder = model.layers[model.encoder_depth :]
    latent = any(layer.kv_bytes_per_token < whole for layer in decoder)
    return latent or model.family in _TABLES


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


def library_bytes(model: ModelSpec, policy: Policy, tokens: int, dtype_bytes: int) -> int:
    """What the libraries behind the operations keep, where a group has so many tokens."""
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
        # the last tile of quantized experts may have rows of its own; and where there are others
        # beside them, these have theirs
        shapes *= (2 if _odd_tiles(model) else 1) + (model.forms is not None)
        return _GENERATED_BYTES * (2 * shapes + _OTHER_SHAPES)
    width = max(
        2 * max(layer.expert_intermediate for layer in model.layers),
        max(_mlp_width(model, layer) for layer in model.layers),
        model.attention_heads * model.head_dim,
        policy.head_tile_rows,
    )
    return min(2 * width * model.hidden_size * dtype_bytes, _MKL_BYTES)


def _odd_tiles(model: ModelSpec) -> bool:
    return bool(quantized_forms(model)) and any(
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


def _feed_forward_bytes(model: ModelSpec, layer: LayerSpec, tokens: int, dtype_bytes: int) -> int:
    """One tile of an expert or a dense MLP: rows in, gate and up, rows out, and in float32; and
    what quantized weights are made numbers in."""
    width = max(layer.expert_intermediate, _mlp_width(model, layer))
    rows = max(expert_tile_rows(tokens, dtype_bytes), min(tokens, EXPERT_TILE_ROWS))
    tile = rows * (2 * (model.hidden_size + width) * dtype_bytes + model.hidden_size * 4)
    return tile + scratch_bytes(model, layer, dtype_bytes)
