"""Drawing tokens: temperature, top-k and top-p as transformers defines them, one request at a time.

Each request has a generator of its own, so that what it draws depends on no other request and not
on how requests are grouped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from solvers.errors import OptionError

__all__ = ["SCRATCH_BYTES", "Sampler", "Sampling"]

LEAST_TEMPERATURE = 1e-6
SCRATCH_BYTES = 40
"""Temporaries for each entry of the vocabulary while one token is drawn: scores twice, sorted ones
with their places, sums of probabilities and masks."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Attributes
    ----------
    temperature
        Divides the logits; above 0.
    top_k
        Only the k likeliest tokens; None: all.
    top_p
        Only the likeliest tokens that together have this probability; None: all.
    seed
        Prompt i (from 0) draws as transformers draws for it alone after
        ``torch.manual_seed(seed + i)``.

    Raises
    ------
    OptionError
        If a value is out of range or without effect.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise OptionError(
                f"temperature {self.temperature} is not above 0; without one, the likeliest token "
                "is taken"
            )
        if self.temperature < LEAST_TEMPERATURE:
            raise OptionError(
                f"temperature {self.temperature} is below {LEAST_TEMPERATURE}, and logits divided "
                "by it may be no numbers any more; without one, the likeliest token is taken"
            )
        if self.top_k is not None and self.top_k < 1:
            raise OptionError(f"top-k {self.top_k} keeps no token; 1 or more are needed")
        if self.top_p is not None and not 0 < self.top_p < 1:
            raise OptionError(
                f"top-p {self.top_p} does not lie between 0 and 1; leave it out to keep all tokens"
            )
        if not 0 <= self.seed < 1 << 31:
            raise OptionError(f"seed {self.seed} does not lie between 0 and {(1 << 31) - 1}")


class Sampler:
    """Draws for the requests of one run.

    Parameters
    ----------
    sampling
        How.
    """

    def __init__(self, sampling: Sampling) -> None:
        from transformers.generation import logits_process

        self._seed = sampling.seed
        self._generators: dict[int, torch.Generator] = {}
        # in the order in which transformers applies them
        self._warpers: list[Any] = []
        if sampling.temperature != 1:
            self._warpers.append(
                logits_process.TemperatureLogitsWarper(float(sampling.temperature))
            )
        if sampling.top_k is not None:
            self._warpers.append(logits_process.TopKLogitsWarper(sampling.top_k))
        if sampling.top_p is not None:
            self._warpers.append(logits_process.TopPLogitsWarper(sampling.top_p))

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """What a token is drawn by: float32 [1, vocabulary], from logits [vocabulary]."""
        scores = logits.to("cpu", torch.float32, copy=True)[None]
        for warper in self._warpers:
            scores = warper(None, scores)
        return scores.softmax(dim=-1)

    def draw(self, request: int, logits: torch.Tensor) -> int:
        """The next token of ``request``; each call moves its generator on."""
        generator = self._generators.get(request)
        if generator is None:
            generator = self._generators[request] = torch.Generator()
            generator.manual_seed(self._seed + request)
        return int(torch.multinomial(self.probabilities(logits), 1, generator=generator))
