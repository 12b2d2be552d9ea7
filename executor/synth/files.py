"""Files of a synthetic checkpoint: shards of safetensors, configuration, tokenizer, prompts."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.weight_files import DTYPE_BITS

__all__ = [
    "SPECIAL_TOKENS",
    "Shards",
    "Tensor",
    "from_float32",
    "write_side_files",
]

SPECIAL_TOKENS = ("<pad>", "<eos>", "<unk>")
"""The first words of the vocabulary; all others are ``t3``, ``t4``, ..."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Its bytes in the file."""
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def from_float32(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """``values`` as ``F32``, ``F16`` or ``BF16`` (its bits, rounded to nearest even)."""
    if dtype == "F32":
        return values
    if dtype == "F16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    rounded: npt.NDArray[Any] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


class Shards:
    """A set of safetensors files of their final size, written piece by piece in any order.

    Parameters
    ----------
    folder
        Where they go.
    tensors
        In the order in which they are to lie.
    metadata
        Strings for every header.
    shard_bytes
        Most bytes of tensors in one file (one tensor may be more).
    """

    def __init__(
        self, folder: Path, tensors: Sequence[Tensor], metadata: dict[str, str], shard_bytes: int
    ) -> None:
        self.size_bytes = sum(tensor.size_bytes for tensor in tensors)
        groups: list[list[Tensor]] = [[]]
        size = 0
        for tensor in tensors:
            if groups[-1] and size + tensor.size_bytes > shard_bytes:
                groups.append([])
                size = 0
            groups[-1].append(tensor)
            size += tensor.size_bytes
        self.files: list[Path] = []
        self._descriptors: list[int] = []
        self._places: dict[str, tuple[int, int]] = {}
        weight_map = {}
        for number, group in enumerate(groups, 1):
            name = "model.safetensors"
            if len(groups) > 1:
                name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
            self._create(folder / name, group, metadata)
            weight_map.update({tensor.name: name for tensor in group})
        if len(groups) > 1:
            index = {"metadata": {"total_size": self.size_bytes}, "weight_map": weight_map}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))

    def _create(self, path: Path, tensors: Sequence[Tensor], metadata: dict[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
        end = 0
        for tensor in tensors:
            header[tensor.name] = {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [end, end + tensor.size_bytes],
            }
            end += tensor.size_bytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # data begins at a multiple of 8, as the library has it
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._descriptors.append(descriptor)
        self.files.append(path)
        os.pwrite(descriptor, struct.pack("<Q", len(text)) + text, 0)
        os.ftruncate(descriptor, 8 + len(text) + end)
        for tensor in tensors:
            begin = header[tensor.name]["data_offsets"][0]
            self._places[tensor.name] = (descriptor, 8 + len(text) + begin)

    def write(self, name: str, offset_bytes: int, data: memoryview | bytes) -> None:
        """Write ``data`` into the tensor ``name``, ``offset_bytes`` from its start."""
        descriptor, begin = self._places[name]
        rest = memoryview(data).cast("B")
        place = begin + offset_bytes
        while rest:
            written = os.pwrite(descriptor, rest, place)
            rest, place = rest[written:], place + written

    def close(self, *, sync: bool) -> None:
        """Close all files; ``sync``: when they are on the disk."""
        while self._descriptors:
            descriptor = self._descriptors.pop()
            if sync:
                os.fsync(descriptor)
            os.close(descriptor)


def write_side_files(
    folder: Path, config: dict[str, Any], vocab_size: int, prompts: Sequence[Sequence[int]]
) -> None:
    """Write ``config.json``, a tokenizer of whole words, and ``prompts.jsonl``."""
    words = [word(index) for index in range(vocab_size)]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, content in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {text: index for index, text in enumerate(words)},
            "unk_token": SPECIAL_TOKENS[2],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "unk_token": SPECIAL_TOKENS[2],
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
    }
    lines = [json.dumps({"prompt": " ".join(words[t] for t in prompt)}) for prompt in prompts]
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")


def word(index: int) -> str:
    """The vocabulary's word with this id."""
    return SPECIAL_TOKENS[index] if index < len(SPECIAL_TOKENS) else f"t{index}"
