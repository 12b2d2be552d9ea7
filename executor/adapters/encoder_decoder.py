"""What families with an encoder say beside the rest: both sides' attention, and what joins them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch.nn import functional

from executor.adapters.base import Adapter, Tensors
from planner.documents import ModelSpec

__all__ = ["EncoderDecoderAdapter"]


class EncoderDecoderAdapter(Adapter, ABC):
    """Layers 0 to ``model.encoder_depth`` - 1 are the encoder's, all others the decoder's.

    Attributes
    ----------
    encoder_norm_name
        Module behind the encoder's last layer, as checkpoints call it.
    """

    encoder_norm_name: ClassVar[str]

    def __init__(self, config: dict[str, Any], model: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__(config, model, dtype)
        with torch.device("meta"):
            self._encoder_norm = self.make_norm(type(self._final_norm))

    def check_config(self) -> None:
        """Computation in float32, where it is known to be transformers'; without ties transformers
        has three embeddings."""
        if self.dtype != torch.float32:
            raise self.refuse(f"{self.family} in {self.model.dtype} cannot be run yet: float32 can")
        self.require("router_dtype", ("float32",))
        self.require("tie_word_embeddings", (True,))

    def bind_outside(self, tensors: Tensors) -> None:
        """Both final norms."""
        rest = {}
        for role, tensor in tensors.items():
            module, _, name = role.rpartition(".")
            if module == self.encoder_norm_name:
                self._encoder_norm._parameters[name] = tensor
            else:
                rest[role] = tensor
        super().bind_outside(rest)

    @abstractmethod
    def capacity(self, tokens: int) -> int:
        """Most of a sequence's ``tokens`` that an expert takes; more pass it by."""

    def order(self, weights: torch.Tensor) -> torch.Tensor | None:
        """The order in which an expert takes a sequence's tokens, whose routers' weights are
        [tokens, top_k]; None: their own."""
        return None

    def kept(self, weights: torch.Tensor, chosen: torch.Tensor, experts: int) -> torch.Tensor:
        """Which choices [tokens, top_k] of one sequence's tokens find room with their experts.

        All first choices come before all second ones, with room or without.
        """
        kept = torch.empty_like(chosen, dtype=torch.bool)
        order, capacity = self.order(weights), self.capacity(len(chosen))
        before = torch.zeros(experts, dtype=torch.int64, device=chosen.device)
        for column, choices in enumerate(chosen.t()):
            queue = choices if order is None else choices[order]
            asked = functional.one_hot(queue, experts)
            ahead = (asked.cumsum(0) - 1 + before).gather(1, queue[:, None])[:, 0]
            kept[slice(None) if order is None else order, column] = ahead < capacity
            before += asked.sum(0)
        return kept

    def weigh(self, weights: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """Weights of experts' outputs, float32 [tokens, top_k], of what ``route`` says of them and
        which choices are kept."""
        return weights.mul_(kept)

    def place(self, rows: torch.Tensor, tokens: torch.Tensor, before: torch.Tensor) -> None:
        """Add to embedding rows what tells their places, where that is the embedding's to do.

        Parameters
        ----------
        rows
            [sequences, tokens, hidden].
        tokens
            [sequences, tokens].
        before
            Tokens before those on their side: [sequences].
        """

    @abstractmethod
    def self_attention(
        self,
        layer: int,
        normed: torch.Tensor,
        positions: torch.Tensor,
        seen: torch.Tensor,
        cache: Any,
    ) -> torch.Tensor:
        """A layer's attention to its own side.

        Parameters
        ----------
        normed
            [sequences, tokens, hidden].
        positions
            Of the tokens: [sequences or 1, tokens].
        seen
            Which columns each token sees: booleans [sequences, 1, tokens or 1, columns].
        cache
            Takes the tokens' keys and values, and says which are attended to (decoder); None: they
            themselves (encoder).
        """

    def encoder_norm(self, rows: torch.Tensor) -> torch.Tensor:
        """The norm behind the encoder's last layer."""
        result: torch.Tensor = self._encoder_norm(rows)
        return result

    @abstractmethod
    def cross_keys_values(
        self, layer: int, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What a decoder's layer keeps of the encoder's output [tokens, hidden]: keys and values,
        both [heads, tokens, size]."""

    @abstractmethod
    def cross_attention(
        self,
        layer: int,
        hidden: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        seen: torch.Tensor,
    ) -> torch.Tensor:
        """Norm and attention of ``hidden`` [sequences, 1, hidden] to what its layer has kept."""
