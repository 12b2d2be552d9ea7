"""The committed example checkpoint is what its log and its README say it is.

Held-out text differs between Python patch releases. Where a text is the one that was scored when
the checkpoint was trained, its loss must be found again; where it was edited since, a loss near it.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "pycode-moe"
COMMITTED = {
    "config.json",
    "corpus.py",
    "generation_config.json",
    "model.safetensors",
    "README.md",
    "report.py",
    "scoring.py",
    "tokenizer.json",
    "tokenizer_config.json",
    "train.py",
    "training_log.json",
}
LAYERS, EXPERTS, TOP_K, HIDDEN, EXPERT_WIDTH, VOCABULARY = 8, 16, 2, 160, 72, 2048


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield


@pytest.fixture(scope="module")
def corpus() -> ModuleType:
    return import_module("corpus")


@pytest.fixture(scope="module")
def scoring() -> ModuleType:
    return import_module("scoring")


@pytest.fixture(scope="module")
def report() -> ModuleType:
    return import_module("report")


@pytest.fixture(scope="module")
def log() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "training_log.json").read_text("utf-8"))
    return loaded


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype="auto").eval()


@pytest.fixture(scope="module")
def scored(
    corpus: ModuleType, scoring: ModuleType, log: dict[str, Any], model: Any, tokenizer: Any
) -> list[tuple[dict[str, Any], Any]]:
    """The log's sample: each row with the score of the text that this Python has."""
    pairs = []
    for row in log["sample"]:
        document = corpus.find_document(row["domain"], row["key"])
        if document is None:
            continue
        end = tokenizer.eos_token_id
        ids = tokenizer(document.text, verbose=False)["input_ids"]
        tokens = np.array([end, *ids, end], dtype=np.int64)
        pairs.append((row, scoring.score_document(model, document, tokens, 1024)))
    return pairs


def test_all_files_are_there_and_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir() if path.is_file()}
    assert set(sizes) >= COMMITTED
    assert sum(sizes.values()) < 25 * 10**6


def test_readme_shows_the_figures_of_the_log(report: ModuleType, log: dict[str, Any]) -> None:
    assert report.table(log) in (FOLDER / "README.md").read_text("utf-8")


def test_checkpoint_loads_in_float32_with_the_expected_shapes(
    model: Any, log: dict[str, Any]
) -> None:
    weights = dict(model.named_parameters())
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert sum(weight.numel() for weight in weights.values()) == log["parameters"]
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.model.embed_tokens.weight.shape == (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        block = model.model.layers[layer].mlp
        assert block.gate.weight.shape == (EXPERTS, HIDDEN)
        assert block.experts.gate_up_proj.shape == (EXPERTS, 2 * EXPERT_WIDTH, HIDDEN)
        assert block.experts.down_proj.shape == (EXPERTS, HIDDEN, EXPERT_WIDTH)
    assert model.config.num_experts_per_tok == TOP_K
    assert model.config.norm_topk_prob is True


def test_tokenizer_gives_every_text_back(tokenizer: Any) -> None:
    text = "def f(x):\n\treturn 'naïve €' + x  # 12\n\n\n\x00 end "
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer) == VOCABULARY
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1)


def test_sample_is_held_out_and_covers_both_domains(
    corpus: ModuleType, log: dict[str, Any], scored: list[tuple[dict[str, Any], Any]]
) -> None:
    assert all(corpus.is_held_out(row["key"]) for row in log["sample"])
    assert {row["domain"] for row, _ in scored} == set(corpus.DOMAINS)


def test_held_out_loss_is_found_again(scored: list[tuple[dict[str, Any], Any]]) -> None:
    for row, score in scored:
        if score.document.sha256 == row["sha256"]:
            assert score.predicted_tokens == row["tokens"]
            assert score.model_nats == pytest.approx(row["model_nats"], rel=1e-3), row["key"]
        else:
            logged = row["model_nats"] / row["tokens"]
            found = score.model_nats / score.predicted_tokens
            assert found == pytest.approx(logged, rel=0.15), row["key"]


def test_model_beats_unigram_and_bigram_on_each_domain(
    corpus: ModuleType, log: dict[str, Any], scored: list[tuple[dict[str, Any], Any]]
) -> None:
    for domain in corpus.DOMAINS:
        figures = log["held_out"][domain]
        assert figures["model_nats_per_token"] < figures["bigram_nats_per_token"] - 0.25
        assert figures["bigram_nats_per_token"] < figures["unigram_nats_per_token"] - 1
        pairs = [(row, score) for row, score in scored if row["domain"] == domain]
        model_nats = sum(score.model_nats for _, score in pairs)
        model_loss = model_nats / sum(score.predicted_tokens for _, score in pairs)
        bigram_nats = sum(row["bigram_nats"] for row, _ in pairs)
        bigram_loss = bigram_nats / sum(row["tokens"] for row, _ in pairs)
        assert model_loss < bigram_loss - 0.15


def test_routing_differs_between_code_and_prose_as_the_log_claims(
    corpus: ModuleType,
    scoring: ModuleType,
    log: dict[str, Any],
    scored: list[tuple[dict[str, Any], Any]],
) -> None:
    usage = {
        domain: scoring.total_usage([score for row, score in scored if row["domain"] == domain])
        for domain in corpus.DOMAINS
    }
    for domain in corpus.DOMAINS:
        tokens = sum(s.predicted_tokens for row, s in scored if row["domain"] == domain)
        assert (usage[domain].sum(axis=1) == TOP_K * tokens).all()
    distances = scoring.total_variation(
        scoring.shares(usage["code"]), scoring.shares(usage["prose"])
    )
    for distance, layer in zip(distances, log["routing"]["layers"], strict=True):
        null = max(layer["null_tv_code_p95"], layer["null_tv_prose_p95"])
        assert layer["tv_code_prose"] > null
        assert distance > null


def test_no_expert_died(log: dict[str, Any]) -> None:
    for layer in log["routing"]["layers"]:
        assert layer["least_share"] > 0.1 / EXPERTS
        assert layer["most_share"] < 4 / EXPERTS


def test_greedy_generation_repeats_the_log(
    report: ModuleType, log: dict[str, Any], model: Any, tokenizer: Any
) -> None:
    for row in log["generations"]:
        tokens, _ = report.greedy(model, tokenizer, row["prompt"], 16)
        # Past a near tie another CPU may rightly choose otherwise.
        ties = [i for i, margin in enumerate(row["logit_margins"][:16]) if margin < 0.01]
        safe = ties[0] if ties else 16
        assert safe >= 4, "the log's prompt says too little"
        assert tokens[:safe] == row["tokens"][:safe]


def test_generated_code_looks_like_code(log: dict[str, Any]) -> None:
    row = log["generations"][0]
    assert len(set(row["tokens"])) > 8
    first = (row["prompt"] + row["text"]).split(":", 1)[0] + ": pass"
    assert isinstance(ast.parse(first).body[-1], ast.ClassDef)


SOURCE = '''"""Module prose."""
import re\f

class A(Exception): "one line"

def f():
    """Only
    prose."""

def g(x):
    """Häufig: shares a line"""; y = "ä"
    return x, y, """not a docstring"""
'''


def test_docstrings_leave_the_code(corpus: ModuleType) -> None:
    code, prose = corpus.code_and_prose(SOURCE)
    assert prose == "Module prose.\n\none line\n\nOnly\nprose.\n"
    assert code == (
        "import re\f\n\nclass A(Exception): pass\n\ndef f():\n    pass\n\ndef g(x):\n"
        '    """Häufig: shares a line"""; y = "ä"\n    return x, y, """not a docstring"""\n'
    )
    assert ast.get_docstring(ast.parse(code)) is None


def test_ngram_models_by_hand(scoring: ModuleType) -> None:
    # Stream a a b over {a, b, c}. Unigram, one added: 3/6, 2/6, 1/6. After a: one a, one b,
    # two types, so p(a|a) = (1 + 2 * 3/6) / 4 = 1/2 and p(c|a) = (2 * 1/6) / 4 = 1/12. Nothing
    # was seen after b, so p(c|b) = p(c) = 1/6.
    ngrams = scoring.BigramModel(np.array([0, 0, 1]), vocabulary_size=3)
    assert ngrams.nats(np.array([0, 0])) == pytest.approx((math.log(2), math.log(2)))
    assert ngrams.nats(np.array([0, 2])) == pytest.approx((math.log(6), math.log(12)))
    assert ngrams.nats(np.array([1, 2])) == pytest.approx((math.log(6), math.log(6)))
    assert ngrams.bigram.sum(axis=1) == pytest.approx(np.ones(3))


def test_distances_at_their_ends(scoring: ModuleType) -> None:
    p, q = np.array([[0.5, 0.5, 0.0]]), np.array([[0.0, 0.0, 1.0]])
    for distance in (scoring.total_variation, scoring.jensen_shannon_bits):
        assert distance(p, p) == pytest.approx([0.0])
        assert distance(p, q) == pytest.approx([1.0])
