"""Train the example checkpoint: a small Qwen3-MoE with learned routing.

    GOMP_SPINCOUNT=0 python examples/pycode-moe/train.py

Reads the standard library of the Python that runs it (see ``corpus.py``), trains a byte-level BPE
tokenizer and the model, scores both on held-out documents, and writes the checkpoint,
``training_log.json`` and the table of ``README.md``. The number of steps is fixed, so that the
same versions on the same machine give the same weights; how long it takes is only reported.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import report
import tokenizers
import torch
import transformers
from corpus import DOMAINS, Document, Domain, fingerprint, is_held_out, read_documents
from scoring import Counts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3MoeConfig
from transformers import Qwen3MoeForCausalLM as Model
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

HERE = Path(__file__).resolve().parent
END_OF_TEXT = "<|endoftext|>"
PADDING = "<|pad|>"


@dataclass(frozen=True)
class Phase:
    """Steps that share a row length.

    Short rows come first: attention costs less on them, and many small steps teach a small model
    more than few large ones.
    """

    steps: int
    row_tokens: int
    rows: dict[Domain, int]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result, apart from the versions and the corpus."""

    seed: int = 20261129
    vocabulary_size: int = 2048
    phases: tuple[Phase, ...] = (
        Phase(steps=1200, row_tokens=128, rows={"code": 5, "prose": 3}),
        Phase(steps=120, row_tokens=256, rows={"code": 5, "prose": 3}),
        Phase(steps=24, row_tokens=1024, rows={"code": 5, "prose": 3}),
    )
    peak_learning_rate: float = 6e-3
    final_learning_rate: float = 1e-4
    warmup_steps: int = 100
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0
    balance_coefficient: float = 0.02
    threads: int = 2

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def mixture(self) -> dict[Domain, float]:
        """Each domain's share of the tokens trained on."""
        tokens = {
            d: sum(phase.steps * phase.row_tokens * phase.rows[d] for phase in self.phases)
            for d in DOMAINS
        }
        return {d: count / sum(tokens.values()) for d, count in tokens.items()}

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to the final rate."""
        if step < self.warmup_steps:
            return self.peak_learning_rate * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.steps - 1 - self.warmup_steps)
        span = self.peak_learning_rate - self.final_learning_rate
        return self.final_learning_rate + span * (1 + math.cos(math.pi * progress)) / 2


def model_config(recipe: Recipe) -> Qwen3MoeConfig:
    return Qwen3MoeConfig(
        vocab_size=recipe.vocabulary_size,
        hidden_size=160,
        intermediate_size=288,  # of a dense MLP, which no layer has
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=16,
        num_experts_per_tok=2,
        moe_intermediate_size=72,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        max_position_embeddings=1024,
        initializer_range=0.06,  # about 160 ** -0.5; the usual 0.02 is meant for wider models
        tie_word_embeddings=True,
        router_aux_loss_coef=recipe.balance_coefficient,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
        dtype="float32",
    )


def train_tokenizer(texts: Sequence[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: any bytes can be encoded, and decoding gives them back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT, PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=PADDING,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
        model_input_names=["input_ids", "attention_mask"],
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[Counts]:
    """Ids of each text, with end-of-text on both sides."""
    end = tokenizer.eos_token_id
    rows = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    return [np.array([end, *ids, end], dtype=np.int64) for ids in rows]


def stream(rows: Sequence[Counts]) -> Counts:
    """One stream in which a single end-of-text divides any two documents."""
    return np.concatenate([rows[0], *(row[1:] for row in rows[1:])])


def rows_of(tokens: Counts, row_tokens: int, rng: np.random.Generator) -> Iterator[Counts]:
    """Rows of ``row_tokens + 1`` ids for ever; each epoch cuts and shuffles the stream anew."""
    while True:
        offset = int(rng.integers(row_tokens))
        starts = np.arange(offset, len(tokens) - row_tokens - 1, row_tokens)
        for start in rng.permutation(starts):
            yield tokens[start : start + row_tokens + 1]


def batches(
    streams: dict[Domain, Counts], phases: Sequence[Phase], rng: np.random.Generator
) -> Iterator[torch.Tensor]:
    """One batch a step, shape ``[rows, row_tokens + 1]``; a row holds one domain only."""
    for phase in phases:
        sources = {d: rows_of(streams[d], phase.row_tokens, rng) for d in phase.rows}
        for _ in range(phase.steps):
            rows = [next(sources[d]) for d, count in phase.rows.items() for _ in range(count)]
            yield torch.from_numpy(np.stack(rows))


def losses(model: Model, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Next-token loss in nats, and the balance loss averaged over layers (at best top-k).

    transformers' own total adds up all layers' choices before it compares experts, so a layer
    that starves expert 3 is excused by another that overworks its own expert 3. Here the same
    formula is applied to each layer alone.
    """
    output = model(input_ids=batch[:, :-1], output_router_logits=True, use_cache=False)
    prediction = torch.nn.functional.cross_entropy(
        output.logits.flatten(0, 1), batch[:, 1:].flatten()
    )
    config = model.config
    layers = [
        load_balancing_loss_func((logits,), config.num_experts, config.num_experts_per_tok)
        for logits in output.router_logits
    ]
    return prediction, torch.stack(layers).mean()


def optimizer_for(model: Model, recipe: Recipe) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=recipe.peak_learning_rate,
        betas=recipe.betas,
        fused=True,
    )


def train(
    model: Model, streams: dict[Domain, Counts], recipe: Recipe, every: int = 50
) -> list[dict[str, float]]:
    """Train in place; returns the mean losses of each ``every`` steps."""
    optimizer = optimizer_for(model, recipe)
    rng = np.random.default_rng(recipe.seed)
    history: list[dict[str, float]] = []
    window: list[tuple[float, float]] = []
    tokens = 0
    started = time.perf_counter()
    model.train()
    for step, batch in enumerate(batches(streams, recipe.phases, rng)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(step)
        prediction, balance = losses(model, batch)
        total = prediction + recipe.balance_coefficient * balance
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        tokens += batch[:, 1:].numel()
        window.append((float(prediction.detach()), float(balance.detach())))
        if (step + 1) % every == 0 or step + 1 == recipe.steps:
            loss, balance_loss = (sum(column) / len(window) for column in zip(*window, strict=True))
            window.clear()
            seconds = time.perf_counter() - started
            entry = {
                "step": step + 1,
                "tokens": tokens,
                "seconds": round(seconds, 1),
                "train_nats_per_token": round(loss, 4),
                "balance_loss": round(balance_loss, 4),
            }
            history.append(entry)
            print(*(f"{key} {value}" for key, value in entry.items()), sep="  ", flush=True)
    return history


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tokenizers": tokenizers.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def run(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Train, score and save everything into ``folder``; returns the log."""
    started = time.perf_counter()
    torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.manual_seed(recipe.seed)

    documents = read_documents()
    learned: dict[Domain, list[str]] = {
        d: [x.text for x in documents if x.domain == d and not is_held_out(x.key)] for d in DOMAINS
    }
    held_out: list[Document] = [x for x in documents if is_held_out(x.key)]
    tokenizer = train_tokenizer([t for d in DOMAINS for t in learned[d]], recipe.vocabulary_size)
    streams = {d: stream(encode(tokenizer, learned[d])) for d in DOMAINS}
    prepared = time.perf_counter()

    model = Model(model_config(recipe))
    model.set_experts_implementation("grouped_mm")
    history = train(model, streams, recipe)
    trained = time.perf_counter()

    model.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=1, do_sample=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    encoded = encode(tokenizer, [x.text for x in held_out])
    figures = report.evaluate(
        model.eval(), streams, held_out, encoded, recipe.mixture(), recipe.seed
    )
    return {
        "recipe": asdict(recipe),
        "versions": versions(),
        "corpus": {
            "sha256": fingerprint(documents),
            "train_tokens": {d: len(streams[d]) for d in DOMAINS},
            "train_documents": {d: len(learned[d]) for d in DOMAINS},
        },
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_seen": history[-1]["tokens"],
        "seconds": {
            "corpus_and_tokenizer": round(prepared - started, 1),
            "training": round(trained - prepared, 1),
            "scoring": round(time.perf_counter() - trained, 1),
        },
        "history": history,
        **figures,
        "generations": report.generations(model, tokenizer),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=HERE, help="where the checkpoint goes")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    log = run(Recipe(), args.folder)
    report.write_log(log, args.folder / "training_log.json")
    readme = args.folder / "README.md"
    if readme.exists():
        report.update_readme(log, readme)
    print(report.table(log))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
