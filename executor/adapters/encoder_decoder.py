"""What families with an encoder say beside the rest: both sides' attention, and what joins them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from executor.adapters.base import Adapter

__all__ = ["EncoderDecoderAdapter"]


class EncoderDecoderAdapter(Adapter, ABC):
    """Layers 0 to ``model.encoder_depth`` - 1 are the encoder's, all others the decoder's.

    Attributes
    ----------
    capacity
        Most tokens of one sequence that an expert takes; those that come later pass it by.
    """

    capacity: int

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

    @abstractmethod
    def encoder_norm(self, rows: torch.Tensor) -> torch.Tensor:
        """The norm behind the encoder's last layer."""

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
