"""Checkpoint folders, written by hand with the safetensors library: found, grouped, refused."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from planner.checkpoint import TensorEntry, read_checkpoint
from planner.model_spec import read_model
from solvers.errors import CheckpointError, InputError, UnsupportedError

CONFIG: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "num_local_experts": 12,
    "num_experts_per_tok": 2,
    "vocab_size": 10,
    "max_position_embeddings": 64,
}
Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


def arrays(config: dict[str, Any] = CONFIG) -> Arrays:
    """Every tensor of the model, each with values of its own."""
    rng = np.random.default_rng(0)

    def values(*shape: int) -> np.ndarray[Any, np.dtype[Any]]:
        return rng.standard_normal(shape).astype(np.float32)

    found = {
        "model.embed_tokens.weight": values(10, 8),
        "model.norm.weight": values(8),
        "lm_head.weight": values(10, 8),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        found |= {
            f"{prefix}input_layernorm.weight": values(8),
            f"{prefix}post_attention_layernorm.weight": values(8),
            f"{prefix}self_attn.q_proj.weight": values(8, 8),
            f"{prefix}self_attn.k_proj.weight": values(4, 8),
            f"{prefix}self_attn.v_proj.weight": values(4, 8),
            f"{prefix}self_attn.o_proj.weight": values(8, 8),
            f"{prefix}block_sparse_moe.gate.weight": values(12, 8),
        }
        for expert in range(12):
            root = f"{prefix}block_sparse_moe.experts.{expert}"
            found |= {
                f"{root}.w1.weight": values(6, 8),
                f"{root}.w2.weight": values(8, 6),
                f"{root}.w3.weight": values(6, 8),
            }
    return found


def write(folder: Path, found: Arrays, config: dict[str, Any] = CONFIG, shards: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(found, folder / "model.safetensors")
        return folder
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {key: found[key] for key in list(found)[number::shards]}
        save_file(part, folder / name)
        weight_map.update(dict.fromkeys(part, name))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def content(entry: TensorEntry) -> np.ndarray[Any, np.dtype[Any]]:
    with entry.file.open("rb") as file:
        file.seek(entry.offset_bytes)
        return np.frombuffer(file.read(entry.size_bytes), np.float32).reshape(entry.shape)


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_grouped_where_they_lie(tmp_path: Path, shards: int) -> None:
    found = arrays()
    checkpoint = read_checkpoint(write(tmp_path / "model", found, shards=shards))
    assert np.array_equal(content(checkpoint.embedding), found["model.embed_tokens.weight"])
    assert np.array_equal(content(checkpoint.head), found["lm_head.weight"])
    assert np.array_equal(content(checkpoint.final_norm), found["model.norm.weight"])
    assert [entry.role for entry in checkpoint.dense[1]] == [
        "input_layernorm.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "self_attn.o_proj.weight",
        "post_attention_layernorm.weight",
        "mlp.gate.weight",
    ]
    for entry in checkpoint.dense[1]:
        assert np.array_equal(content(entry), found[entry.name])
    # expert 10 comes after expert 9, though names sort otherwise; gate, up, down are w1, w3, w2
    for expert, weights in enumerate(checkpoint.experts[1]):
        root = f"model.layers.1.block_sparse_moe.experts.{expert}"
        assert [entry.name for entry in weights] == [
            f"{root}.{name}.weight" for name in ("w1", "w3", "w2")
        ]
        assert [entry.role for entry in weights] == [
            "gate_proj.weight",
            "up_proj.weight",
            "down_proj.weight",
        ]
        for entry in weights:
            assert np.array_equal(content(entry), found[entry.name])
    model = checkpoint.model
    assert (model.name, model.bytes_source, model.dtype) == ("model", "headers", "float32")
    assert model.total_bytes == sum(array.nbytes for array in found.values())
    assert read_model(tmp_path / "model") == model


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    found = arrays()
    del found["lm_head.weight"]
    config = {**CONFIG, "tie_word_embeddings": True}
    checkpoint = read_checkpoint(write(tmp_path / "model", found, config))
    assert checkpoint.head is checkpoint.embedding
    assert (checkpoint.model.tied, checkpoint.model.head_bytes) == (True, 0)


def test_a_head_that_is_stored_counts_though_it_is_called_tied(tmp_path: Path) -> None:
    config = {**CONFIG, "tie_word_embeddings": True}
    checkpoint = read_checkpoint(write(tmp_path / "model", arrays(), config))
    assert checkpoint.head.name == "lm_head.weight"
    assert (checkpoint.model.tied, checkpoint.model.head_bytes) == (False, 4 * 80)


def test_the_fingerprint_tells_checkpoints_apart(tmp_path: Path) -> None:
    found = arrays()
    prints = []
    for number, change in enumerate((None, "lm_head.weight", "config")):
        body = dict(CONFIG)
        changed = {name: array.copy() for name, array in found.items()}
        if change == "config":
            body["rope_theta"] = 3
        elif change:
            changed[change][0, 0] += 1
        folder = write(tmp_path / str(number), changed, body)
        prints.append(read_checkpoint(folder).model.fingerprint)
    assert len(set(prints)) == 3
    again = read_checkpoint(write(tmp_path / "0", found)).model.fingerprint
    assert again == prints[0]


def test_a_buffer_saved_by_mistake_is_left_alone(tmp_path: Path) -> None:
    found = arrays()
    found["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(1, np.float32)
    model = read_checkpoint(write(tmp_path / "model", found)).model
    assert model.other_bytes == 4


def test_synthetic_is_said(tmp_path: Path) -> None:
    config = {**CONFIG, "moeplan_synthetic": {"seed": 0}}
    assert read_checkpoint(write(tmp_path / "model", arrays(), config)).model.synthetic


def remove(name: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        (folder / name).unlink()

    return act


def change_index(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        change(index)
        path.write_text(json.dumps(index))

    return act


SECOND = "model-00002-of-00003.safetensors"


def first_of_second(index: dict[str, Any]) -> str:
    return next(name for name, shard in index["weight_map"].items() if shard == SECOND)


def forget(index: dict[str, Any]) -> None:
    del index["weight_map"][first_of_second(index)]


def misplace(index: dict[str, Any]) -> None:
    index["weight_map"][first_of_second(index)] = "model-00001-of-00003.safetensors"


def escape(index: dict[str, Any]) -> None:
    index["weight_map"][first_of_second(index)] = "../outside.safetensors"


def empty(index: dict[str, Any]) -> None:
    index["weight_map"] = []


def truncate(folder: Path) -> None:
    path = folder / SECOND
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (remove("config.json"), "config.json: no such file"),
        (remove(SECOND), f"{SECOND}: missing"),
        (remove("model.safetensors.index.json"), "3 safetensors files but no"),
        (truncate, f"{SECOND}: truncated: tensor"),
        (change_index(forget), "is not the one that"),
        (change_index(misplace), "is missing, though"),
        (change_index(escape), "is not a file name"),
        (change_index(empty), "it has no weight_map"),
    ],
)
def test_broken_folders(tmp_path: Path, harm: Callable[[Path], None], words: str) -> None:
    folder = write(tmp_path / "model", arrays(), shards=3)
    harm(folder)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folders_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        read_checkpoint(tmp_path / "none")
    folder = write(tmp_path / "model", arrays())
    (folder / "model.safetensors").rename(folder / "odd-name.safetensors")
    assert read_checkpoint(folder).model.name == "model"
    (folder / "odd-name.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no weights"):
        read_checkpoint(folder)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="not safetensors"):
        read_checkpoint(folder)
    with pytest.raises(CheckpointError, match="not safetensors"):
        read_model(folder)


@pytest.mark.parametrize(
    ("name", "replacement", "words"),
    [
        ("model.layers.1.self_attn.k_proj.weight", None, "is missing, though config.json"),
        ("model.layers.1.self_attn.k_proj.weight", (8, 4), "is 8 x 4; config.json asks for 4 x 8"),
        ("model.layers.0.block_sparse_moe.experts.11.w2.weight", None, "experts.11.w2"),
        ("model.layers.2.input_layernorm.weight", (8,), "has no place in a mixtral model of 2"),
        ("model.layers.0.self_attn.q_norm.weight", (8,), "has no place"),
        ("model.norm.weight", (), "is a single number; config.json asks for 8"),
    ],
)
def test_tensors_that_contradict_the_configuration(
    tmp_path: Path, name: str, replacement: tuple[int, ...] | None, words: str
) -> None:
    found = arrays()
    found.pop(name, None)
    if replacement is not None:
        found[name] = np.zeros(replacement, np.float32)
    folder = write(tmp_path / "model", found)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder)
    assert words in str(caught.value)
    assert name in str(caught.value)
    assert str(folder) in str(caught.value)


def test_types_that_are_no_weights(tmp_path: Path) -> None:
    found = arrays()
    found["model.norm.weight"] = np.zeros(8, np.int32)
    with pytest.raises(CheckpointError, match="of type I32, not a float"):
        read_checkpoint(write(tmp_path / "model", found))
    found["model.norm.weight"] = np.zeros(8, np.uint8)
    with pytest.raises(CheckpointError, match="of type U8; config"):
        read_checkpoint(write(tmp_path / "model", found))


def test_a_quantized_configuration_needs_quantized_weights(tmp_path: Path) -> None:
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    folder = write(tmp_path / "model", arrays(), {**CONFIG, "quantization_config": quantization})
    with pytest.raises(CheckpointError, match="asks for F8_E4M3"):
        read_checkpoint(folder)


def test_models_that_are_not_known(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", arrays(), {**CONFIG, "model_type": "llama_of_tomorrow"})
    with pytest.raises(UnsupportedError, match="model type 'llama_of_tomorrow'"):
        read_checkpoint(folder)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 300) | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted({*CONFIG, "tie_word_embeddings", "torch_dtype", "quantization_config", "head_dim"})


@settings(max_examples=200)
@given(
    family=st.sampled_from(
        ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "llama4", "switch_transformers", "yuan"]
    ),
    changes=st.dictionaries(
        st.sampled_from(KEYS) | st.sampled_from(["text_config", "moe_config", "layer_types"]),
        json_values,
        max_size=4,
    ),
)
def test_any_configuration_is_read_or_refused(family: str, changes: dict[str, Any]) -> None:
    body = {**CONFIG, "num_experts": 4, "moe_intermediate_size": 4, "model_type": family, **changes}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(body))
        refusal, spec = "", None
        try:
            spec = read_model(path)
        except InputError as error:
            refusal = str(error)
        if spec is None:
            assert "\n" not in refusal
            assert str(path) in refusal
        else:
            assert spec.total_bytes > 0
