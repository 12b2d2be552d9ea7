"""Operations of a Mixtral-shaped layer on the GPU of this machine, as raw medians in one JSON file.

``benchmarks/roofline.py`` holds the catalogue's roofline against them. Needs torch with CUDA and
nothing of moeplan: ``python benchmarks/roofline_gpu.py OUT.json``.
"""

from __future__ import annotations

# ruff: noqa: E402 (the search path comes before the imports)
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# not the script's own folder, which has files of the names of packages
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.nn import functional as nn

from benchmarks.record import Record

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, EXPERTS = 4096, 14336, 32, 8, 128, 8


def median_ns(work: Callable[[], Any], repeats: int = 15) -> dict[str, float]:
    """Wall time of one call, synchronised on both sides."""
    for _ in range(3):
        work()
    samples = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        work()
        torch.cuda.synchronize()
        samples.append(time.perf_counter_ns() - start)
    low, middle, high = statistics.quantiles(samples, n=4)
    return {"median_ns": middle, "spread_ns": (high - low) / 2, "samples": repeats}


def main(out: Path) -> None:
    """Measure everything."""
    record = Record.begin(budget="15 samples an operation")
    torch.manual_seed(0)
    kind = {"device": "cuda", "dtype": torch.bfloat16}

    def weight(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, **kind) / columns**0.5

    rows: list[dict[str, Any]] = []

    def add(operation: str, sizes: dict[str, int], work: Callable[[], Any]) -> None:
        rows.append({"operation": operation, **sizes, **median_ns(work)})

    up = [weight(2 * INNER, HIDDEN) for _ in range(EXPERTS)]
    down = [weight(HIDDEN, INNER) for _ in range(EXPERTS)]
    turn = 0

    def expert(x: torch.Tensor) -> torch.Tensor:
        nonlocal turn
        turn = (turn + 1) % EXPERTS
        gate, lift = (x @ up[turn].T).chunk(2, dim=-1)
        return (nn.silu(gate) * lift) @ down[turn].T

    for count in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        x = torch.randn(count, HIDDEN, **kind)
        add("expert", {"rows": count}, lambda x=x: expert(x))

    q, o = weight(HEADS * HEAD_DIM, HIDDEN), weight(HIDDEN, HEADS * HEAD_DIM)
    k, v = weight(KV_HEADS * HEAD_DIM, HIDDEN), weight(KV_HEADS * HEAD_DIM, HIDDEN)
    scale = torch.ones(HIDDEN, **kind)

    def heads(x: torch.Tensor, w: torch.Tensor, number: int) -> torch.Tensor:
        return (x @ w.T).unflatten(-1, (number, HEAD_DIM)).transpose(1, 2)

    def attention(x: torch.Tensor, past: torch.Tensor | None) -> torch.Tensor:
        y = nn.rms_norm(x, (HIDDEN,), scale)
        query, key, value = heads(y, q, HEADS), heads(y, k, KV_HEADS), heads(y, v, KV_HEADS)
        if past is not None:
            past[0, :, :, -1:], past[1, :, :, -1:] = key, value
            key, value = past[0], past[1]
        mixed = nn.scaled_dot_product_attention(
            query, key, value, is_causal=past is None, enable_gqa=True
        )
        return x + mixed.transpose(1, 2).flatten(2) @ o.T

    for batch, context in ((1, 128), (1, 2048), (8, 512), (32, 512), (128, 512), (32, 2048)):
        x = torch.randn(batch, 1, HIDDEN, **kind)
        past = torch.randn(2, batch, KV_HEADS, context, HEAD_DIM, **kind)
        sizes = {"rows": batch, "second": context}
        add("attention_decode", sizes, lambda x=x, past=past: attention(x, past))
    for batch, context in ((1, 128), (1, 512), (1, 2048), (8, 512), (4, 2048)):
        x = torch.randn(batch, context, HIDDEN, **kind)
        sizes = {"rows": batch, "second": context}
        add("attention_prefill", sizes, lambda x=x: attention(x, None))

    router = weight(EXPERTS, HIDDEN)
    for count in (1, 32, 512, 4096):
        x = torch.randn(count, HIDDEN, **kind)
        add("router", {"rows": count}, lambda x=x: torch.topk((x @ router.T).softmax(-1), 2))
    head = weight(32000, HIDDEN)
    for count in (1, 32, 256):
        x = torch.randn(count, HIDDEN, **kind)
        add("head", {"rows": count}, lambda x=x: (x @ head.T).argmax(-1))

    for size in (1 << 20, 4 << 20, 16 << 20, 64 << 20, 336 << 20):
        target = torch.empty(size, dtype=torch.uint8, device="cuda")
        for name, pinned in (("h2d_pinned", True), ("h2d_pageable", False)):
            source = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
            add(name, {"bytes": size}, lambda a=target, b=source: a.copy_(b, non_blocking=True))
    one = torch.zeros(1, device="cuda")
    add("launch", {}, lambda: one.add_(1))
    large = weight(8192, 8192)
    add("matmul", {"rows": 8192}, lambda: large @ large)
    block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    add("device_copy", {"bytes": 1 << 30}, lambda: block[: 1 << 29].copy_(block[1 << 29 :]))
    out.write_text(
        json.dumps(
            {
                "about": record.about(),
                "gpu": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "rows": rows,
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
