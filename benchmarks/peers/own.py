"""moeplan: a plan, carried out in a process of its own; then its disk's bandwidth, alone.

Beside the document it leaves the routing that it met (``--routing``), from which the least bytes
of a clairvoyant are computed elsewhere.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from measured import bytes_read, options, tell

_ALONE_SECONDS = 1.5
_SETTLE_SECONDS = 0.5


def bandwidth(file: Path, chunk_bytes: int) -> float:
    """Bytes/s of direct reads of chunks in no order, with nothing beside.

    The first half second does not count: a held disk lends what it was not asked for before.
    """
    from executor.direct import DirectFile, ReadBuffer

    source, buffer = DirectFile(file), ReadBuffer(chunk_bytes)
    places = range(source.size_bytes // chunk_bytes)
    order = random.Random(0)
    begun = now = start = time.perf_counter()
    done = 0
    while now - begun < _SETTLE_SECONDS + _ALONE_SECONDS:
        source.read(buffer.memory, order.choice(places) * chunk_bytes, chunk_bytes)
        now = time.perf_counter()
        if now - begun < _SETTLE_SECONDS:
            start, done = now, 0
        else:
            done += chunk_bytes
    source.close()
    return done / (now - start)


def main() -> None:
    """Run a plan."""
    parser = options(__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--routing", type=Path, required=True, help="file for what routers chose")
    parser.add_argument("--trace", type=Path, required=True, help="file for the trace")
    asked = parser.parse_args()
    import numpy as np

    from executor import Engine
    from planner.documents import Plan, load_document, write_document

    plan = load_document(Plan, asked.plan)
    prompts = json.loads(asked.prompts.read_text(encoding="utf-8"))
    begun = time.perf_counter()
    with Engine.from_plan(plan) as engine:
        load, before = time.perf_counter() - begun, bytes_read()
        outputs = engine.generate(prompts, asked.new_tokens)
        read, trace = bytes_read() - before, engine.trace()
        routing = engine.routing()
    np.savez(
        asked.routing, experts=routing.experts, sequence=routing.sequence, position=routing.position
    )
    write_document(trace, asked.trace)
    totals = trace.totals
    store = plan.locations.store
    tell(
        asked.out,
        [list(output.token_ids) for output in outputs],
        load_seconds=load,
        prefill_seconds=(totals.wall_ns - totals.decode_ns) / 1e9,
        decode_seconds=totals.decode_ns / 1e9,
        read=read,
        bubble_inter_share=totals.bubble_inter_layer_ns / totals.wall_ns,
        bubble_intra_share=totals.bubble_intra_layer_ns / totals.wall_ns,
        process_peak_bytes=totals.process_peak_bytes,
        bandwidth_alone=bandwidth(Path(store) / "weights.bin", plan.policy.chunk_bytes)
        if store
        else None,
    )


if __name__ == "__main__":
    main()
