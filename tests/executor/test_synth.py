"""Synthetic checkpoints: what they are, and what transformers makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from executor.synth import FAMILIES, write_synthetic
from executor.synth.routing import grouped_choice, target_routing
from planner.checkpoint import read_checkpoint
from planner.routing import TraceArrays, write_trace
from solvers.errors import CheckpointError, OptionError, UnsupportedError

os.environ.setdefault("GOMP_SPINCOUNT", "0")

BASE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 600,
    "max_position_embeddings": 128,
    "num_experts_per_tok": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_group": 4,
    "topk_group": 2,
}
OWN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy"},
    "deepseek_v3": {**LATENT, "q_lora_rank": 48, "routed_scaling_factor": 2.5},
    "ernie4_5_moe": {
        "moe_num_experts": 8,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
    },
    "glm4_moe": {
        "moe_intermediate_size": 32,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "head_dim": 32,
    },
    "gpt_oss": {
        "num_local_experts": 8,
        "head_dim": 32,
        "sliding_window": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
    },
    "granitemoe": {
        "num_local_experts": 8,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.22,
        "logits_scaling": 6.0,
    },
    "minimax_m2": {"num_local_experts": 8, "head_dim": 32},
    "mixtral": {"num_local_experts": 8},
    "olmoe": {"num_experts": 16},
    "phimoe": {"num_local_experts": 8, "attention_bias": True, "lm_head_bias": True},
    "qwen2_moe": {
        "num_experts": 16,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    },
    "qwen3_moe": {"num_experts": 16, "moe_intermediate_size": 32, "head_dim": 32},
}


def config_file(folder: Path, family: str, **more: Any) -> Path:
    path = folder / f"{family}.json"
    path.write_text(json.dumps({"model_type": family, **BASE, **OWN[family], **more}))
    return path


def load(folder: Path) -> Any:
    """transformers' model, with nothing missing and nothing left over."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    network, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return network.eval()


def prompts(folder: Path, count: int, tokens: int) -> Any:
    """Token ids of the checkpoint's prompts, by its own tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    lines = (folder / "prompts.jsonl").read_text().splitlines()[:count]
    texts = [json.loads(line)["prompt"] for line in lines]
    ids = [tokenizer(text)["input_ids"][:tokens] for text in texts]
    assert tokenizer.decode(tokenizer(texts[0])["input_ids"]) == texts[0]
    return torch.tensor(ids)


def choices(network: Any, ids: Any) -> npt.NDArray[np.int64]:
    """Experts chosen: [layers, sequences, tokens, top_k], from the routers' own outputs."""
    torch = pytest.importorskip("torch")
    found: list[Any] = []
    handles = [
        module.register_forward_hook(lambda _module, _inputs, output: found.append(output[-1]))
        for name, module in network.named_modules()
        if name.endswith("mlp.gate")
    ]
    with torch.no_grad():
        network(ids)
    for handle in handles:
        handle.remove()
    return np.stack([picks.reshape(*ids.shape, -1).numpy() for picks in found])


def measured(picks: npt.NDArray[np.int64], experts: int) -> tuple[Any, float]:
    """Shares of choices, descending, mean over layers; how often an expert is chosen again."""
    shares = [-np.sort(-np.bincount(p.ravel(), minlength=experts) / p.size) for p in picks]
    again = (picks[:, :, :-1, :, None] == picks[:, :, 1:, None, :]).any(axis=-1)
    return np.mean(shares, axis=0), float(again.mean())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_and_walks(family: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    out = tmp_path / "out"
    summary = write_synthetic(config_file(tmp_path, family), out, layers=2)
    checkpoint = read_checkpoint(out)
    assert checkpoint.model.synthetic
    assert checkpoint.model.total_bytes == summary.size_bytes
    assert (len(checkpoint.model.layers), summary.layers) == (2, 2)
    network = load(out)
    ids = prompts(out, 4, 24)
    generated = network.generate(ids[:, :8], max_new_tokens=16, do_sample=False)
    # what follows a prompt's beginning is its rest: greedy decoding walks along the same cycle
    assert torch.equal(generated, ids)


@pytest.mark.parametrize(
    ("family", "skew", "persistence"),
    [("mixtral", None, None), ("mixtral", 2.0, 0.7), ("qwen3_moe", 3.0, 0.5), ("olmoe", 0.0, 0.2)],
)
def test_routing_follows_what_was_asked(
    family: str, skew: float | None, persistence: float | None, tmp_path: Path
) -> None:
    """Within 0.03 of the asked persistence and of every expert's share.

    Measured on 4,096 tokens, the whole cycle. Where neighbours correlate by 0.9 they are worth
    about 400 independent ones, so that a share's standard error is at most 0.012.
    """
    out = tmp_path / "out"
    path = config_file(tmp_path, family, hidden_size=256, vocab_size=4099, num_hidden_layers=2)
    summary = write_synthetic(path, out, skew=skew, persistence=persistence, seed=3)
    shares, again = measured(choices(load(out), prompts(out, 64, 64)), len(summary.shares))
    assert abs(again - summary.persistence) < 0.03
    assert np.abs(shares - summary.shares).max() < 0.03
    if skew is not None:
        rank = (np.arange(len(shares)) + 0.5) / len(shares)
        asked = np.exp(-skew * rank)
        assert np.abs(shares - asked / asked.sum()).max() < 0.03


def recorded(folder: Path) -> Path:
    """A trace of 20,000 tokens: expert 0 of 4 is in every pair, the other changes now and then."""
    rng = np.random.default_rng(0)
    tokens = 20000
    other = np.empty(tokens, dtype=np.int64)
    other[0] = 1
    for index in range(1, tokens):
        stays = rng.random() < 0.8
        other[index] = other[index - 1] if stays else rng.integers(1, 4)
    experts = np.stack([np.zeros(tokens, dtype=np.int64), other], axis=1)
    arrays = TraceArrays(
        experts=np.stack([experts, experts], axis=1).astype(np.uint16),
        sequence=np.zeros(tokens, dtype=np.int32),
        position=np.arange(tokens, dtype=np.int32),
        phase=np.zeros(tokens, dtype=np.uint8),
    )
    write_trace(folder, arrays, model_hash="0" * 64, moe_layers=(0, 1), expert_count=4)
    return folder / "routing.json"


def test_a_recorded_routing_is_carried_over(tmp_path: Path) -> None:
    target = target_routing(4, 2, skew=None, persistence=None, routing=recorded(tmp_path))
    # expert 0 has half of all choices, the others a sixth each (0.5 is capped at 0.95 / 2)
    assert target.shares[0, 0] == pytest.approx(0.475)
    assert np.abs(target.shares[:, 1:] - 0.525 / 3).max() < 0.02
    # expert 0 always repeats, the other with 0.8 + 0.2 / 3 = 0.867: 0.933 in all, over a
    # popularity that alone gives 2 (1/4 + 3/36) = 0.667; with the cap 0.635
    assert target.persistence == pytest.approx(0.635 + (0.933 - 0.667) / 0.333 * 0.365, abs=0.02)
    out = tmp_path / "out"
    path = config_file(tmp_path, "mixtral", num_local_experts=4, hidden_size=256)
    write_synthetic(path, out, routing=tmp_path / "routing.json")
    shares, again = measured(choices(load(out), prompts(out, 32, 48)), 4)
    assert shares[0] == pytest.approx(0.475, abs=0.03)
    assert again == pytest.approx(target.persistence, abs=0.03)


def test_grouped_choice_by_hand() -> None:
    scores = np.array([[3.0, -9.0, 2.0, 2.5, 0.0, 0.1], [0.0, 0.1, 5.0, -9.0, 1.0, 1.1]])
    # pairs: best single 3, 2.5, 0.1 -> groups 0 and 1; 0.1, 5, 1.1 -> groups 1 and 2
    picks = grouped_choice(2, groups=3, kept=2, best=1)(scores)
    assert [sorted(row) for row in picks.tolist()] == [[0, 3], [2, 5]]
    # sums of two after a sigmoid: 0.95, 1.81, 1.02 -> groups 1 and 2; 1.02, 0.99, 1.48 -> 0 and 2
    picks = grouped_choice(2, groups=3, kept=2, best=2)(scores)
    assert [sorted(row) for row in picks.tolist()] == [[2, 3], [4, 5]]


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    path = config_file(tmp_path, "olmoe")
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        write_synthetic(path, tmp_path / name, seed=seed, layers=1)
    contents = {
        name: {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}
        for name in "abc"
    }
    assert contents["a"] == contents["b"]
    assert contents["a"]["model.safetensors"] != contents["c"]["model.safetensors"]
    assert contents["a"]["prompts.jsonl"] != contents["c"]["prompts.jsonl"]


def test_modes_of_an_older_checkpoint_stay(tmp_path: Path) -> None:
    path, out = config_file(tmp_path, "olmoe"), tmp_path / "out"
    write_synthetic(path, out, layers=1)
    (out / "model.safetensors").chmod(0o600)
    out.chmod(0o750)
    modes = {file.name: file.stat().st_mode for file in (out, *out.iterdir())}
    write_synthetic(path, out, seed=1, layers=1)
    assert {file.name: file.stat().st_mode for file in (out, *out.iterdir())} == modes


def test_types_words_and_ties(tmp_path: Path) -> None:
    path = config_file(tmp_path, "qwen3_moe", tie_word_embeddings=True)
    write_synthetic(path, tmp_path / "out", dtype="float32", vocab_size=100, layers=1)
    model = read_checkpoint(tmp_path / "out").model
    assert (model.dtype, model.vocab_size, model.tied) == ("float32", 100, False)
    body = json.loads((tmp_path / "out" / "config.json").read_text())
    assert body["moeplan_synthetic"]["source_layers"] == 3
    assert "not for what it says" in body["moeplan_synthetic"]["note"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    path, out = config_file(tmp_path, "olmoe"), tmp_path / "out"
    write_synthetic(path, out, layers=1, seed=1)
    before = (out / "model.safetensors").read_bytes()

    def stop(done: int, total: int) -> None:
        assert 0 < done <= total
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_synthetic(path, out, layers=1, seed=2, progress=stop)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["olmoe.json", "out"]
    assert (out / "model.safetensors").read_bytes() == before
    # what a killed process leaves is removed by the next one; no process has this number
    (tmp_path / ".out.synth-99999999").mkdir()
    write_synthetic(path, out, layers=1, seed=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["olmoe.json", "out"]
    assert (out / "model.safetensors").read_bytes() != before


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = config_file(tmp_path, "mixtral")
    summary = write_synthetic(path, tmp_path / "out", progress=lambda *now: seen.append(now))
    assert seen == sorted(seen)
    assert seen[-1] == (summary.size_bytes, summary.size_bytes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": 0}, "num_hidden_layers: 0 is not between 1 and the 3"),
        ({"layers": 4}, "num_hidden_layers: 4 is not between 1 and the 3"),
        ({"vocab_size": 4}, "vocab_size: 4 is not between"),
        ({"dtype": "int8"}, "'int8' cannot be written"),
        ({"skew": -1.0}, "skew is -1.0"),
        ({"persistence": 1.0}, "persistence is 1.0"),
        ({"skew": 1.0, "routing": Path("x")}, "one or the other"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        write_synthetic(config_file(tmp_path, "mixtral"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_places_that_are_refused(tmp_path: Path) -> None:
    path = config_file(tmp_path, "mixtral")
    other = tmp_path / "mine"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "mixtral"}')
    with pytest.raises(OptionError, match="no synthetic checkpoint"):
        write_synthetic(path, other)
    with pytest.raises(OptionError, match="is a file"):
        write_synthetic(path, path)
    with pytest.raises(OptionError, match="folder above"):
        write_synthetic(path, tmp_path / "none" / "out")
    empty = tmp_path / "empty"
    empty.mkdir()
    write_synthetic(path, empty, layers=1)
    assert read_checkpoint(empty).model.synthetic


def test_models_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        write_synthetic(tmp_path / "nothing.json", tmp_path / "out")
    path = tmp_path / "config.json"
    for body, words in (
        ({"model_type": "mixtral", **BASE}, "no num_local_experts"),
        ({"model_type": "brand_new_moe", **BASE}, "is not known"),
        ({"model_type": "minicpm", **BASE, "num_experts": 4}, "cannot be synthesized"),
    ):
        path.write_text(json.dumps(body))
        with pytest.raises(UnsupportedError, match=words):
            write_synthetic(tmp_path, tmp_path / "out")


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """A checkpoint of 300 MB is written by a process that never holds 256 MB."""
    more = {"hidden_size": 1024, "intermediate_size": 2048, "vocab_size": 24000}
    path = config_file(tmp_path, "mixtral", num_hidden_layers=2, **more)
    program = """
import sys
from pathlib import Path
from executor.synth import write_synthetic
summary = write_synthetic(Path(sys.argv[1]), Path(sys.argv[2]))
# not getrusage: what it says was partly this process's parent's
status = Path("/proc/self/status").read_text()
print(summary.size_bytes, next(x for x in status.splitlines() if "VmHWM" in x).split()[1])
"""
    command = [sys.executable, "-c", program, str(path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    size_bytes, peak_kib = map(int, done.stdout.split())
    assert size_bytes > 290e6
    assert peak_kib * 1024 < 256e6
