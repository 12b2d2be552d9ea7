"""llama.cpp with its weights mapped: all prompts are sent at once to its own server's batching."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measured import bytes_read, options, tell


def main() -> None:
    """Run all prompts, side by side."""
    parser = options(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--ubatch", type=int, required=True, help="tokens computed at once")
    asked = parser.parse_args()
    import xllamacpp

    prompts = json.loads(asked.prompts.read_text(encoding="utf-8"))
    count, longest = len(prompts), max(map(len, prompts))
    params = xllamacpp.CommonParams()
    params.model.path = str(asked.model)
    params.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_MMAP
    params.n_parallel = count
    params.kv_unified = True
    params.n_ctx = count * (longest + asked.new_tokens + 8)
    # every prompt in one batch, so that all of them decode together from their second token on
    params.n_batch = max(count * longest, asked.ubatch)
    params.n_ubatch = asked.ubatch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked.threads
    params.n_threads_http = count + 2
    params.warmup = params.fit_params = params.cache_prompt = params.cache_idle_slots = False
    params.no_extra_bufts = True  # repacked weights would be a second copy, and not mapped
    params.cache_ram_mib = params.n_ctx_checkpoints = 0
    begun = time.perf_counter()
    server = xllamacpp.Server(params)
    load = time.perf_counter() - begun

    def complete(prompt: list[int]) -> dict[str, Any]:
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": asked.new_tokens,
                "temperature": 0.0,
                "samplers": ["top_k"],
                "top_k": 1,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        return answer if isinstance(answer, dict) else json.loads(answer)

    before, start = bytes_read(), time.perf_counter()
    with ThreadPoolExecutor(count) as threads:
        answers = list(threads.map(complete, prompts))
    total = time.perf_counter() - start
    for answer in answers:
        if "timings" not in answer:
            raise SystemExit(f"llama.cpp: {json.dumps(answer)[:250]}")
    # from when the last prompt was read
    decode = min(answer["timings"]["predicted_ms"] for answer in answers) / 1e3
    tell(
        asked.out,
        # the tokenizer's words are t3, t4, ...
        [[int(n) for n in re.findall(r"t(\d+)", one["choices"][0]["text"])] for one in answers],
        load_seconds=load,
        prefill_seconds=total - decode,
        decode_seconds=decode,
        read=bytes_read() - before,
    )


if __name__ == "__main__":
    main()
