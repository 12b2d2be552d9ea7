"""The figures of a trained checkpoint: computing them, the log, and the table of the README."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from corpus import DOMAINS, Document, Domain
from scoring import (
    BigramModel,
    Counts,
    DocumentScore,
    Floats,
    half_split_distances,
    jensen_shannon_bits,
    repeat_shares,
    sample_rank,
    score_document,
    shares,
    total_usage,
    total_variation,
)
from transformers import PreTrainedTokenizerFast, Qwen3MoeForCausalLM

__all__ = ["evaluate", "generations", "greedy", "table", "update_readme", "write_log"]

WINDOW_TOKENS = 1024
HALF_SPLITS = 200
SAMPLE_DOCUMENTS = 5
SAMPLE_TOKENS = range(300, 4097)
PROMPTS = ("import os\nimport sys\n\n\nclass ", "Return True if the ")
BEGIN, END = "<!-- figures: written by train.py -->", "<!-- end of figures -->"


def evaluate(
    model: Qwen3MoeForCausalLM,
    streams: Mapping[Domain, Counts],
    held_out: Sequence[Document],
    encoded: Sequence[Counts],
    mixture: Mapping[Domain, float],
    seed: int,
) -> dict[str, Any]:
    """Score the held-out documents.

    Parameters
    ----------
    streams
        The training tokens of each domain; the n-gram models are fitted on their own domain's,
        which makes them stronger than fitted on all.
    encoded
        Ids of each held-out document, with end-of-text on both sides.
    mixture
        Each domain's share of the tokens trained on; balance is judged under it.
    """
    baselines = {d: BigramModel(streams[d], model.config.vocab_size) for d in DOMAINS}
    scores: dict[Domain, list[DocumentScore]] = {d: [] for d in DOMAINS}
    ngram_nats: dict[str, tuple[float, float]] = {}
    for document, tokens in zip(held_out, encoded, strict=True):
        domain = document.domain
        scores[domain].append(score_document(model, document, tokens, WINDOW_TOKENS))
        ngram_nats[f"{domain}/{document.key}"] = baselines[domain].nats(tokens)
    return {
        "held_out": {d: _loss_figures(scores[d], ngram_nats) for d in DOMAINS},
        "routing": _routing_figures(scores, mixture, model.config.num_experts_per_tok, seed),
        "sample": [_row(s, ngram_nats) for d in DOMAINS for s in _sample(scores[d])],
    }


def greedy(
    model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str, new_tokens: int
) -> tuple[list[int], list[float]]:
    """Greedy continuation, and by how much each token's logit beat the runner-up's."""
    ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(prompt)["input_ids"]]])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.cat(output.logits).topk(2, dim=-1).values
    tokens = output.sequences[0, ids.shape[1] :]
    return cast(list[int], tokens.tolist()), cast(list[float], (best[:, 0] - best[:, 1]).tolist())


def generations(
    model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerFast, new_tokens: int = 48
) -> list[dict[str, Any]]:
    rows = []
    for prompt in PROMPTS:
        tokens, margins = greedy(model, tokenizer, prompt, new_tokens)
        rows.append(
            {
                "prompt": prompt,
                "text": tokenizer.decode(tokens),
                "tokens": tokens,
                "logit_margins": [round(margin, 4) for margin in margins],
            }
        )
    return rows


def write_log(log: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


def update_readme(log: Mapping[str, Any], path: Path) -> None:
    """Put the tables between the markers.

    Raises
    ------
    ValueError
        The file lacks a marker.
    """
    text = path.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path.name} lacks the lines '{BEGIN}' and '{END}'")
    path.write_text(f"{head}{BEGIN}\n\n{table(log)}\n{END}{tail}", encoding="utf-8")


def table(log: Mapping[str, Any]) -> str:
    """The figures of a log as Markdown."""
    lines = [
        "| held-out loss | documents | tokens | bytes | unigram | bigram | model |",
        "|---|---|---|---|---|---|---|",
    ]
    for domain, row in log["held_out"].items():
        losses = (
            f"{row[f'{name}_nats_per_token']:.3f} ({row[f'{name}_bits_per_byte']:.3f})"
            for name in ("unigram", "bigram", "model")
        )
        sizes = (f"{row[name]:,}" for name in ("documents", "tokens", "bytes"))
        lines.append(f"| {domain} | {' | '.join((*sizes, *losses))} |")
    lines += [
        "",
        "Loss in nats per token (in brackets: bits per byte).",
        "",
        "| layer | TV code-prose | null code | null prose | JS (bits) "
        "| least used | most used | repeats code | repeats prose |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for layer, row in enumerate(log["routing"]["layers"]):
        lines.append(
            f"| {layer} | {row['tv_code_prose']:.3f} "
            f"| {row['null_tv_code_mean']:.3f} ({row['null_tv_code_p95']:.3f}) "
            f"| {row['null_tv_prose_mean']:.3f} ({row['null_tv_prose_p95']:.3f}) "
            f"| {row['js_bits_code_prose']:.3f} "
            f"| {row['least_share']:.1%} | {row['most_share']:.1%} "
            f"| {row['repeat_code']:.2f} ({row['repeat_code_independent']:.2f}) "
            f"| {row['repeat_prose']:.2f} ({row['repeat_prose_independent']:.2f}) |"
        )
    seconds = log["seconds"]
    lines += [
        "",
        f"{log['parameters']:,} parameters; {log['tokens_seen']:,} tokens trained on in "
        f"{log['history'][-1]['step']:,} steps and {seconds['training']:.0f} s.",
        "",
    ]
    return "\n".join(lines)


def _loss_figures(
    scores: Sequence[DocumentScore], ngram_nats: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    rows = [_row(score, ngram_nats) for score in scores]
    tokens = sum(row["tokens"] for row in rows)
    size_bytes = sum(row["bytes"] for row in rows)
    figures: dict[str, float] = {"documents": len(rows), "tokens": tokens, "bytes": size_bytes}
    for name in ("unigram", "bigram", "model"):
        nats = sum(row[f"{name}_nats"] for row in rows)
        figures[f"{name}_nats_per_token"] = round(nats / tokens, 4)
        figures[f"{name}_bits_per_byte"] = round(nats / math.log(2) / size_bytes, 4)
    return figures


def _row(score: DocumentScore, ngram_nats: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    document = score.document
    unigram, bigram = ngram_nats[f"{document.domain}/{document.key}"]
    return {
        "domain": document.domain,
        "key": document.key,
        "sha256": document.sha256,
        "bytes": len(document.text.encode()),
        "tokens": score.predicted_tokens,
        "unigram_nats": round(unigram, 3),
        "bigram_nats": round(bigram, 3),
        "model_nats": round(score.model_nats, 3),
    }


def _sample(scores: Sequence[DocumentScore]) -> list[DocumentScore]:
    fitting = [score for score in scores if score.predicted_tokens in SAMPLE_TOKENS]
    return sorted(fitting, key=lambda score: sample_rank(score.document))[:SAMPLE_DOCUMENTS]


def _routing_figures(
    scores: Mapping[Domain, Sequence[DocumentScore]],
    mixture: Mapping[Domain, float],
    top_k: int,
    seed: int,
) -> dict[str, Any]:
    share: dict[Domain, Floats] = {d: shares(total_usage(scores[d])) for d in DOMAINS}
    mixed = sum((mixture[d] * share[d] for d in DOMAINS), np.zeros_like(share["code"]))
    columns: dict[str, Floats] = {
        "tv_code_prose": total_variation(share["code"], share["prose"]),
        "js_bits_code_prose": jensen_shannon_bits(share["code"], share["prose"]),
        "least_share": mixed.min(axis=1),
        "most_share": mixed.max(axis=1),
    }
    for domain in DOMAINS:
        null = half_split_distances(scores[domain], HALF_SPLITS, seed)
        columns[f"null_tv_{domain}_mean"] = null.mean(axis=0)
        columns[f"null_tv_{domain}_p95"] = np.quantile(null, 0.95, axis=0)
        repeated, independent = repeat_shares(scores[domain], top_k)
        columns[f"repeat_{domain}"] = repeated
        columns[f"repeat_{domain}_independent"] = independent
    layers = [
        {name: round(float(values[layer]), 4) for name, values in columns.items()}
        for layer in range(len(mixed))
    ]
    usage = {d: total_usage(scores[d]).tolist() for d in DOMAINS}
    return {"layers": layers, "usage": usage}
