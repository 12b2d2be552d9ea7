"""transformers, with everything in memory or with accelerate's offload to the disk.

Offloaded weights lie in a folder as accelerate writes it, one file a tensor (``--prepare`` makes
it); modules that ``--cpu-memory`` holds are loaded from there, the others are mapped and read
through the page cache when a pass comes to them. One batch, greedy.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from measured import bytes_read, options, tell


def prepare(checkpoint: Path, folder: Path) -> None:
    """Write every tensor of a model to a folder of accelerate's."""
    import torch
    from accelerate.utils import offload_state_dict
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    offload_state_dict(folder, model.state_dict())


def offloaded(checkpoint: Path, folder: Path, cpu_memory: int, experts: str) -> Any:
    """A model of which ``cpu_memory`` bytes are loaded and the rest stays on the disk."""
    import torch
    from accelerate import dispatch_model, infer_auto_device_map, init_empty_weights
    from accelerate.utils import OffloadedWeightsLoader, set_module_tensor_to_device
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(checkpoint)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, experts_implementation=experts
        )
    places = infer_auto_device_map(
        model,
        max_memory={"cpu": cpu_memory},
        no_split_module_classes=list(model._no_split_modules or []),
        dtype=torch.bfloat16,
    )
    weights = OffloadedWeightsLoader(save_folder=str(folder))
    here = [name for name, place in places.items() if place == "cpu"]
    for name in dict(model.named_parameters()):
        if any(not module or name.startswith(f"{module}.") or name == module for module in here):
            # a copy: what is mapped would not stay in memory
            value = weights[name].clone()
            set_module_tensor_to_device(model, name, "cpu", value)
    if "disk" not in places.values():
        return model
    return dispatch_model(model, places, main_device="cpu", offload_dir=folder, force_hooks=True)


def main() -> None:
    """Run one batch."""
    parser = options(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--offload", type=Path, help="folder of offloaded weights")
    parser.add_argument("--cpu-memory", type=int, help="bytes of weights to load")
    parser.add_argument("--experts", default="grouped_mm", help="transformers' ways to compute")
    parser.add_argument("--prepare", action="store_true", help="write --offload, run nothing")
    asked = parser.parse_args()
    if asked.prepare:
        prepare(asked.checkpoint, asked.offload)
        asked.out.write_text("{}", encoding="utf-8")
        return
    import json

    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.set_num_threads(asked.threads)
    begun = time.perf_counter()
    if asked.offload:
        model = offloaded(asked.checkpoint, asked.offload, asked.cpu_memory, asked.experts)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            asked.checkpoint, dtype=torch.bfloat16, experts_implementation=asked.experts
        )
    model.eval()
    ids = torch.tensor(json.loads(asked.prompts.read_text(encoding="utf-8")))

    def generate(rows: torch.Tensor, count: int, seen: list[float]) -> torch.Tensor:
        def after_token(*_: Any, **__: Any) -> torch.Tensor:
            seen.append(time.perf_counter())
            return torch.zeros(len(rows), dtype=torch.bool)

        config = GenerationConfig(
            do_sample=False, max_new_tokens=count, min_new_tokens=count, pad_token_id=0
        )
        with torch.inference_mode():
            found = model.generate(
                rows,
                attention_mask=torch.ones_like(rows),
                generation_config=config,
                stopping_criteria=[after_token],
            )
        return found[:, rows.shape[1] :]

    if not asked.offload:
        # kernels are chosen and threads started; with weights on the disk it would read them
        generate(ids[:, :4], 2, [])
    load = time.perf_counter() - begun
    before, start, seen = bytes_read(), time.perf_counter(), list[float]()
    new = generate(ids, asked.new_tokens, seen)
    end = time.perf_counter()
    tell(
        asked.out,
        new.tolist(),
        load_seconds=load,
        prefill_seconds=seen[0] - start,
        decode_seconds=end - seen[0],
        read=bytes_read() - before,
    )


if __name__ == "__main__":
    main()
