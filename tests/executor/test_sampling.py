"""Drawn tokens are transformers', each prompt alone, however prompts are grouped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from executor import Engine, Sampling, open_weights
from executor.sampling import Sampler
from planner.documents import Plan, Workload
from planner.memory import smallest_policy
from solvers.errors import OptionError

PROMPTS = [[5, 9, 3], [17], [100, 4, 60, 8, 9, 10], [31, 32], [7, 7, 7, 7], [60], [9, 5]]
NEW_TOKENS = 6


def plan_for(
    checkpoint: Path, helpers: Any, n_batches: int = 1, batch_size: int = 3, prompt_tokens: int = 6
) -> Plan:
    with open_weights(checkpoint) as source:
        policy = replace(
            smallest_policy(source.model, 4), n_batches=n_batches, batch_size=batch_size, slots=3
        )
    made: Plan = helpers.plan(checkpoint, policy, Workload(7, prompt_tokens, NEW_TOKENS))
    return made


def drawn_by_transformers(checkpoint: Path, sampling: Sampling) -> list[list[int]]:
    """Prompt i alone, after ``torch.manual_seed(seed + i)``."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    found = []
    for number, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        torch.manual_seed(sampling.seed + number)
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=True,
            temperature=sampling.temperature,
            top_k=sampling.top_k or 0,
            top_p=sampling.top_p or 1.0,
        )
        found.append(whole[0, len(prompt) :].tolist())
    return found


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=3),
        Sampling(temperature=0.7, top_p=0.8),
        Sampling(temperature=2.0, top_k=40, top_p=0.6, seed=5),
    ],
)
def test_tokens(sampling: Sampling, checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    checkpoint = checkpoint_of("mixtral")
    want = drawn_by_transformers(checkpoint, sampling)
    assert want != helpers.greedy(checkpoint, PROMPTS, NEW_TOKENS), "nothing is drawn"
    for n_batches, batch_size in ((2, 2), (1, 7)):
        with Engine.from_plan(plan_for(checkpoint, helpers, n_batches, batch_size)) as engine:
            outputs = engine.generate(PROMPTS, sampling=sampling)
            assert [list(output.token_ids) for output in outputs] == want
            # each run draws anew
            assert engine.generate(PROMPTS, sampling=sampling) == outputs


def test_greedy_is_what_comes_without(checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    """Also after a run that drew, and with another seed other tokens come."""
    checkpoint = checkpoint_of("granitemoe")  # whose logits are scaled
    want = helpers.greedy(checkpoint, PROMPTS, NEW_TOKENS)
    with Engine.from_plan(plan_for(checkpoint, helpers)) as engine:
        drawn = [engine.generate(PROMPTS, sampling=Sampling(2.0, seed=seed)) for seed in (1, 2)]
        assert drawn[0] != drawn[1]
        assert [list(output.token_ids) for output in engine.generate(PROMPTS)] == want
        # top-k of one leaves nothing to draw
        only = engine.generate(PROMPTS, sampling=Sampling(2.0, top_k=1))
        assert [list(output.token_ids) for output in only] == want


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.integers(-40, 40), min_size=2, max_size=30, unique=True),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.none() | st.integers(1, 40),
    top_p=st.none() | st.floats(0.05, 0.95),
)
def test_probabilities(
    logits: list[int], temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """By definition: scale, keep the k likeliest, then the fewest whose sum reaches p."""
    scores = np.array(logits) / 10 / temperature
    order = np.argsort(-scores)
    kept = order[:top_k]
    weights = np.exp(scores[kept] - scores.max())
    shares = weights / weights.sum()
    if top_p is not None:
        before = np.cumsum(shares) - shares
        if np.abs(before - top_p).min() < 1e-5:
            return  # rounding decides
        kept, weights = kept[before < top_p], weights[before < top_p]
    want = np.zeros(len(logits))
    want[kept] = weights / weights.sum()
    sampler = Sampler(Sampling(temperature, top_k, top_p))
    found = sampler.probabilities(torch.tensor(logits) / 10)
    np.testing.assert_allclose(found[0].numpy(), want, atol=1e-5)


def test_logits_lie_where_hidden_states_were(
    checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    """7 sequences x 6 tokens x 64 values hold 12 rows of 211 logits; three such buffers."""
    with Engine.from_plan(plan_for(checkpoint_of("mixtral"), helpers, 1, 7)) as engine:
        state = engine._device.state
        parts = state.logits(7, 211)
        assert [len(part) for part in parts] == [7]
        assert [len(part) for part in state.logits(36, 211)] == [12, 12, 12]
        with pytest.raises(RuntimeError, match="1 sequence"):
            state.logits(37, 211)


def test_no_room_to_draw(checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    """3 sequences need 633 logits: 3 x 1 x 64 values three times over hold no row of 211, with two
    tokens one each, and that is enough; but the temporaries need more."""
    checkpoint = checkpoint_of("mixtral")
    plan = plan_for(checkpoint, helpers, prompt_tokens=1)
    with pytest.raises(OptionError, match=r"drawing from 211 tokens .* --prompt-tokens 2$"):
        Engine.from_plan(plan, sampling=Sampling())
    with Engine.from_plan(plan) as engine, pytest.raises(OptionError, match="prompt-tokens 2"):
        engine.generate([[5]], sampling=Sampling())
    with Engine.from_plan(
        plan_for(checkpoint, helpers, prompt_tokens=2), sampling=Sampling()
    ) as engine:
        assert engine.generate([[5], [6], [7]], sampling=Sampling())
    with pytest.raises(OptionError, match="top-k 211 has no effect"):
        Engine.from_plan(plan_for(checkpoint, helpers), sampling=Sampling(top_k=211))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"temperature": 0.0}, "temperature 0.0 is not above 0"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": float("inf")}, "temperature inf"),
        ({"temperature": 1e-40}, "temperature 1e-40 is below 1e-06"),
        ({"top_k": 0}, "top-k 0 keeps no token"),
        ({"top_p": 0.0}, "top-p 0.0"),
        ({"top_p": 1.0}, "leave it out to keep all"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 1 << 31}, "seed 2147483648"),
    ],
)
def test_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Sampling(**values)
