"""The weights of a checkpoint as a GGUF file in bfloat16, for llama.cpp: Mixtral, OLMoE, Qwen3-MoE.

    python benchmarks/peers/gguf_file.py CHECKPOINT FILE.gguf

Words of the tokenizer are carried over, so that token ids mean the same; norms and routers are
float32, as llama.cpp wants them. One tensor is in memory at a time.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open

FAMILIES = {
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
}
_ROTATED = re.compile(r"\.([qk])_proj\.")
_ROTATED_HEADS = {"q": "num_attention_heads", "k": "num_key_value_heads"}
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


def interleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection as llama.cpp's ``llama`` rotates them: in pairs of
    neighbours, where Mixtral pairs a row with the one half a head further on."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return halves.transpose(1, 2).reshape(rows.shape)


def describe(writer: gguf.GGUFWriter, config: dict[str, Any], words: list[str]) -> None:
    """The model's numbers and its tokens."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    width = config.get("head_dim") or hidden // heads
    experts = config.get("num_local_experts") or config["num_experts"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(config["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    kinds = [
        gguf.TokenType.CONTROL if word.startswith("<") else gguf.TokenType.NORMAL for word in words
    ]
    # llama.cpp looks for a newline among the bytes; nothing is ever tokenized here
    words[2], kinds[2] = "<0x0A>", gguf.TokenType.BYTE
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * len(words))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)


def numbered(name: str) -> list[str | int]:
    """For sorting: numbers in names by value."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def main(checkpoint: Path, out: Path) -> None:
    """Write ``out``."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    words = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    arch = FAMILIES[config["model_type"]]
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[arch])
    describe(writer, config, words)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    with ExitStack() as stack:
        files = [
            stack.enter_context(safe_open(file, "pt"))
            for file in sorted(checkpoint.glob("*.safetensors"))
        ]
        where = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        # the experts of a layer are one tensor
        parts: dict[str, list[str]] = {}
        for name in sorted(where, key=numbered):
            found = _EXPERT.fullmatch(name)
            parts.setdefault(f"{found[1]}.{found[3]}" if found else name, []).append(name)
        small = set()
        for merged, some in parts.items():
            name = names.get_name(merged, try_suffixes=(".weight",))
            if name is None:
                raise SystemExit(f"gguf_file: {merged}: llama.cpp has no such tensor")
            shape = where[some[0]].get_slice(some[0]).get_shape()
            if _EXPERT.fullmatch(some[0]):
                shape = [len(some), *shape]
            if len(shape) == 1 or merged.endswith(".gate.weight"):
                small.add(merged)
                size, kind = 4 * int(np.prod(shape)), gguf.GGMLQuantizationType.F32
                writer.add_tensor_info(name, shape, np.dtype(np.float32), size, kind)
            else:
                wide = [*shape[:-1], 2 * shape[-1]]
                size, kind = int(np.prod(wide)), gguf.GGMLQuantizationType.BF16
                writer.add_tensor_info(name, wide, np.dtype(np.uint8), size, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for merged, some in parts.items():
            each = [where[name].get_tensor(name) for name in some]
            one = torch.stack(each) if _EXPERT.fullmatch(some[0]) else each[0]
            if arch == gguf.MODEL_ARCH.LLAMA and (found := _ROTATED.search(merged)):
                one = interleaved(one, config[_ROTATED_HEADS[found[1]]])
            wanted = one.float() if merged in small else one.to(torch.bfloat16)
            raw = wanted if merged in small else wanted.contiguous().view(torch.uint8)
            writer.write_tensor_data(raw.numpy())
        writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
