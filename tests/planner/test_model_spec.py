"""Model documents of bare configurations: shapes by hand, and all of the real ones there are."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from planner.architectures import FAMILIES, Architecture, describe
from planner.documents import ModelSpec, parse_document, to_json
from planner.model_spec import read_model
from solvers.errors import CheckpointError, DocumentError, UnsupportedError

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT.parent / "shared" / "data" / "configs"
PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())

real = pytest.mark.skipif(not CONFIGS.is_dir(), reason="../shared/data/configs is not here")

MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "vocab_size": 10,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}


def write(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def model(folder: Path, config: dict[str, Any]) -> ModelSpec:
    return read_model(write(folder, config))


def test_mixtral_by_hand(tmp_path: Path) -> None:
    spec = model(tmp_path, MIXTRAL)
    layer = spec.layers[1]
    # q: 8 x 8, k and v: 4 x 8 each, o: 8 x 8, two bytes a value
    assert layer.attention_bytes == 2 * (64 + 32 + 32 + 64)
    assert layer.router_bytes == 2 * 5 * 8
    assert layer.norm_bytes == 2 * 2 * 8
    assert (layer.shared_expert_bytes, layer.mlp_bytes) == (0, 0)
    assert layer.expert_bytes == 2 * 3 * 6 * 8
    assert layer.kv_bytes_per_token == 2 * 2 * 2 * 2  # two heads of two values, k and v, bfloat16
    assert (spec.embedding_bytes, spec.head_bytes, spec.final_norm_bytes) == (160, 160, 16)
    per_layer = 192 + 40 + 16 + 5 * 144
    assert spec.parameters == 3 * per_layer + 80 + 80 + 8
    assert spec.active_parameters == spec.parameters - 3 * 3 * 144
    assert spec.total_bytes == 2 * spec.parameters
    assert (spec.bytes_source, spec.tied, spec.synthetic) == ("config", False, False)


def test_qwen2_moe_shared_expert_biases_and_dense_layers(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen2_moe",
        "hidden_size": 8,
        "intermediate_size": 20,
        "moe_intermediate_size": 3,
        "shared_expert_intermediate_size": 7,
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "vocab_size": 10,
        "max_position_embeddings": 64,
        "dtype": "float32",
        "tie_word_embeddings": True,
    }
    spec = model(tmp_path, config)
    # layers 1 and 3 are every second one; 3 is excepted
    assert [layer.experts for layer in spec.layers] == [0, 6, 0, 0]
    assert [layer.mlp_bytes for layer in spec.layers] == [4 * 3 * 20 * 8, 0, 4 * 480, 4 * 480]
    assert spec.layers[1].shared_expert_bytes == 4 * (3 * 7 * 8 + 8)
    assert spec.layers[1].attention_bytes == 4 * (4 * 64 + 3 * 8)  # q, k and v have biases
    assert (spec.tied, spec.head_bytes, spec.dtype_bytes) == (True, 0, 4)


def latent(**more: Any) -> dict[str, Any]:
    return {
        "model_type": "deepseek_v3",
        "hidden_size": 256,
        "intermediate_size": 384,
        "moe_intermediate_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "q_lora_rank": 96,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "vocab_size": 100,
        "max_position_embeddings": 64,
        "torch_dtype": "bfloat16",
        **more,
    }


def test_latent_attention_by_hand(tmp_path: Path) -> None:
    spec = model(tmp_path, latent())
    # q_a 96 x 256, its norm 96, q_b (2 heads x 48) x 96; kv_a (64 + 16) x 256, its norm 64,
    # kv_b (2 x (32 + 32)) x 64; o 256 x (2 x 32)
    values = 96 * 256 + 96 + 96 * 96 + 80 * 256 + 64 + 128 * 64 + 256 * 64
    assert spec.layers[0].attention_bytes == 2 * values
    assert spec.layers[0].kv_bytes_per_token == 2 * (64 + 16)
    # the correction bias stays in float32
    assert spec.layers[1].router_bytes == 2 * 4 * 256 + 4 * 4
    assert spec.layers[1].shared_expert_bytes == 2 * 3 * 128 * 256
    assert (spec.layers[0].experts, spec.layers[0].mlp_bytes) == (0, 2 * 3 * 384 * 256)


def test_fp8_stores_a_byte_a_value_and_a_scale_a_block(tmp_path: Path) -> None:
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    spec = model(tmp_path, latent(quantization_config=quantization))
    # an expert's three matrices are 1 x 2 blocks each (128 x 256)
    assert spec.layers[1].expert_bytes == 3 * (128 * 256 + 4 * 2)
    # the router and the norms are not quantized
    assert spec.layers[1].router_bytes == 2 * 4 * 256 + 4 * 4
    assert spec.layers[1].norm_bytes == 2 * 2 * 256
    assert (spec.dtype, spec.dtype_bytes) == ("float8", 1)
    plain = model(tmp_path, latent())
    assert spec.parameters == plain.parameters


def test_fp8_leaves_named_modules_alone(tmp_path: Path) -> None:
    quantization = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["self_attn"],
    }
    spec = model(tmp_path, latent(quantization_config=quantization))
    assert spec.layers[0].attention_bytes == model(tmp_path, latent()).layers[0].attention_bytes


def test_prediction_layers_are_no_part_of_the_count(tmp_path: Path) -> None:
    spec, plain = model(tmp_path, latent(num_nextn_predict_layers=1)), model(tmp_path, latent())
    assert spec.parameters == plain.parameters
    # a layer like the last, two norms, the joint projection, a norm, embedding and head again
    more = 2 * (3 * 256 + 256 * 512 + 2 * 100 * 256)
    assert spec.other_bytes == plain.layers[1].total_bytes + more


def test_native_deepseek_configuration(tmp_path: Path) -> None:
    native = {
        "vocab_size": 100,
        "dim": 256,
        "inter_dim": 384,
        "moe_inter_dim": 128,
        "n_layers": 2,
        "n_dense_layers": 1,
        "n_heads": 2,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_activated_experts": 2,
        "score_func": "sigmoid",
        "q_lora_rank": 96,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
    }
    spec, same = model(tmp_path, native), model(tmp_path, latent())
    assert spec.layers == same.layers
    assert (spec.family, spec.max_context) == ("deepseek_v3", 16384)


def test_a_text_part_is_read_out_of_a_multimodal_configuration(tmp_path: Path) -> None:
    text = {
        "hidden_size": 8,
        "intermediate_size": 6,
        "intermediate_size_mlp": 12,
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 16,
        "vocab_size": 10,
        "max_position_embeddings": 64,
    }
    spec = model(tmp_path, {"model_type": "llama4", "text_config": text, "dtype": "float16"})
    assert spec.family == "llama4_text"
    assert [layer.experts for layer in spec.layers] == [0, 4, 0, 4]
    # every fourth layer sees everything, the others a chunk
    assert [layer.window for layer in spec.layers] == [16, 16, 16, None]
    assert (spec.dtype, spec.layers[1].shared_expert_bytes) == ("float16", 2 * 3 * 6 * 8)


def test_linear_attention_keeps_a_state_instead_of_a_cache(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_next",
        "hidden_size": 8,
        "moe_intermediate_size": 4,
        "shared_expert_intermediate_size": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "num_hidden_layers": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 3,
        "linear_value_head_dim": 5,
        "linear_conv_kernel_dim": 4,
        "vocab_size": 10,
        "max_position_embeddings": 64,
    }
    spec = model(tmp_path, config)
    assert [layer.kv_bytes_per_token for layer in spec.layers] == [0, 0, 0, 2 * 2 * 4]
    # convolution: (2 x 2 x 3 + 4 x 5) channels x 4 in bfloat16; state: 4 heads of 3 x 5, float32
    assert spec.layers[0].state_bytes == 2 * 32 * 4 + 4 * 4 * 3 * 5
    assert spec.layers[3].state_bytes == 0


def test_encoder_and_decoder(tmp_path: Path) -> None:
    config = {
        "model_type": "switch_transformers",
        "d_model": 8,
        "d_ff": 6,
        "d_kv": 2,
        "num_heads": 4,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
        "num_experts": 4,
        "vocab_size": 10,
        "relative_attention_num_buckets": 5,
    }
    spec = model(tmp_path, config)
    # the encoder's two, then the decoder's
    assert (spec.encoder, spec.encoder_depth) == (2, 2)
    assert [layer.experts for layer in spec.layers] == [0, 4, 0, 4]
    # self attention 4 x 64, cross attention as much; a first layer has 5 x 4 position biases
    assert spec.layers[3].attention_bytes == 4 * 2 * 256
    assert spec.layers[2].attention_bytes == 4 * (2 * 256 + 20)
    assert spec.layers[1].attention_bytes == 4 * 256
    assert spec.layers[3].expert_bytes == 4 * 2 * 6 * 8
    # keys and values of 4 heads of 2; an encoder keeps none
    assert [layer.kv_bytes_per_token for layer in spec.layers] == [0, 0, 64, 64]
    # both final norms
    assert (spec.final_norm_bytes, spec.other_bytes) == (2 * 4 * 8, 0)
    assert parse_document(ModelSpec, to_json(spec), "here") == spec
    for changes, words in (
        ({"encoder": 4}, "layers: there is none of the decoder"),
        ({"encoder_layers": to_json(spec)["layers"]}, "encoder_layers: is not empty"),
    ):
        with pytest.raises(DocumentError, match=words):
            parse_document(ModelSpec, {**to_json(spec), **changes}, "here")
    assert spec.total_bytes == 4 * spec.parameters


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "llama", "num_local_experts": None}, "'llama'"),
        ({"model_type": "brand_new_moe"}, "'brand_new_moe' is not known"),
        ({"model_type": 7}, "model_type is 7"),
        ({"model_type": None}, "no model_type"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"hidden_size": "big"}, "hidden_size is big"),
        ({"hidden_size": -8}, "hidden_size is -8"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**9}, "4096"),
        ({"num_local_experts": 10**9}, "65536"),
        ({"num_experts_per_tok": 6}, "6 of only 5 experts"),
        ({"num_key_value_heads": 3}, "cannot be divided"),
        ({"torch_dtype": "int3"}, "'int3' is not known"),
        ({"quantization_config": {"quant_method": "gptq"}}, "'gptq' is not known"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "'mxfp4' is not known"),
        ({"quantization_config": {"quant_method": "fp8"}}, "weight_block_size"),
        ({"quantization_config": []}, "no quantization_config"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is yes"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        model(tmp_path, {**MIXTRAL, **change})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_that_are_too_large_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="4096"):
        model(tmp_path, latent(num_nextn_predict_layers=10**9))
    openmoe = {**MIXTRAL, "model_type": "openmoe", "num_experts": 4, "head_dim": 2}
    openmoe |= {"router_topk": 10**9, "moe_layer_interval": 1, "num_experts_per_tok": None}
    with pytest.raises(UnsupportedError, match="of only 4 experts"):
        model(tmp_path, openmoe)


def test_a_model_whose_layers_are_all_dense_is_refused(tmp_path: Path) -> None:
    config = latent(first_k_dense_replace=2)
    with pytest.raises(UnsupportedError, match="no layer with experts"):
        model(tmp_path, config)


def test_names_and_missing_files(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert model(folder, MIXTRAL).name == "my-model"
    assert read_model(folder).name == "my-model"
    other = tmp_path / "Mixtral.v1.json"
    other.write_text(json.dumps(MIXTRAL))
    assert read_model(other).name == "Mixtral.v1"
    with pytest.raises(CheckpointError, match="no such file"):
        read_model(tmp_path / "nothing")
    (tmp_path / "bad.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        read_model(tmp_path / "bad.json")


def stored_values(architecture: Architecture) -> int:
    """Numbers in a checkpoint's files: prediction layers, buffers and scales included."""
    layers = (*architecture.layers, *architecture.encoder_layers, *architecture.spare)
    return sum(
        sum(prod(weight.shape) for weight in layer.dense)
        + layer.experts * sum(prod(weight.shape) for weight in layer.expert)
        for layer in layers
    ) + sum(prod(weight.shape) for weight in (*architecture.outside, *architecture.encoder_other))


@real
def test_every_real_configuration_is_understood() -> None:
    files = sorted(CONFIGS.glob("*.json"))
    assert len(files) == 46
    families = {read_model(file).family for file in files}
    # minimax is MiniMax-Text-01, of which there is no configuration
    assert families == set(FAMILIES) - {"minimax"}
    assert {file.stem for file in files} == set(PUBLISHED["models"])


@real
@pytest.mark.parametrize("name", sorted(PUBLISHED["models"]))
def test_totals_agree_with_published_figures(name: str) -> None:
    path = CONFIGS / f"{name}.json"
    spec, architecture = read_model(path), describe(json.loads(path.read_text()))
    figures = {
        "parameters": spec.parameters,
        "values": stored_values(architecture),
        "bytes": spec.total_bytes,
        "bytes with a copy": spec.total_bytes + spec.embedding_bytes,
    }
    for fact in PUBLISHED["models"][name]:
        computed, published = figures[fact["figure"]], fact["value"]
        assert abs(computed - published) <= 0.01 * published, fact
        if fact.get("includes_more"):  # a vision tower too
            assert computed < published
        else:  # to the unit, or as far as the published figure is rounded
            assert abs(computed - published) <= fact["half_width"]


@real
@pytest.mark.parametrize("name", sorted(PUBLISHED["active"]))
def test_active_parameters_agree_with_published_figures(name: str) -> None:
    fact = PUBLISHED["active"][name]
    spec = read_model(CONFIGS / f"{name}.json")
    computed = spec.active_parameters
    if "embedding" in fact["without"]:
        computed -= spec.vocab_size * spec.hidden_size
    assert abs(computed - fact["value"]) <= max(fact["half_width"], 0.01 * fact["value"])


@real
def test_the_page_on_models_says_what_is_computed() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    for file in sorted(CONFIGS.glob("*.json")):
        spec = read_model(file)
        row = f"| {file.stem} | {spec.family} | {spec.parameters:,} | {spec.active_parameters:,} |"
        assert row in page, row
