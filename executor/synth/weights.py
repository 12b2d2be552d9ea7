"""Values of a synthetic checkpoint's tensors, streamed to disk within bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, prod, sqrt

import numpy as np
import numpy.typing as npt

from executor.synth.files import SPECIAL_TOKENS, Shards, Tensor, from_float32
from executor.synth.routing import Router
from planner.architectures import Architecture, Weight

__all__ = ["Filler", "Walk"]

COMMON = 0.5
"""Share c of the direction that all embeddings have in common."""

_PER_TOKEN = sqrt(1 - COMMON**2)
_BUFFER_VALUES = 1 << 22
_CHUNK_BYTES = 8 << 20
_DISTURBANCE = 0.04
"""What all layers together add to the residual stream, against the embedding."""
_LOGIT = 20.0
"""Score of the next token of the walk; all others are near 0."""


class Filler:
    """Fills tensors from one large buffer of Gaussians, read from a random place each time.

    Weights are thus not independent of one another over a whole model, but no two tensors are
    alike, and writing is as fast as the disk.
    """

    def __init__(
        self, shards: Shards, architecture: Architecture, scaling: float, seed: int
    ) -> None:
        self._shards = shards
        self._rng = np.random.default_rng([seed, 2])
        self._normal = self._rng.standard_normal(_BUFFER_VALUES, dtype=np.float32)
        self._scaled: dict[tuple[int, str], memoryview] = {}
        self._roles = {weight.role for layer in architecture.layers for weight in layer.dense}
        # two additions a layer, in random directions
        self._small = _DISTURBANCE / sqrt(2 * len(architecture.layers)) / max(scaling, 1.0)

    def fill(self, tensor: Tensor, weight: Weight, router: Router | None) -> None:
        """Write one tensor, by its role: norms are 1, biases 0, routers as given.

        A layer norm takes the common direction away, and its bias brings it back.
        """
        role = weight.role
        last = role.split(".")[-2] if "." in role else role
        if role.endswith("norm.weight"):
            centred = role.replace("weight", "bias") in self._roles
            self._constant(tensor, _PER_TOKEN if centred else 1.0)
        elif role.endswith("layernorm.bias"):
            self._constant(tensor, COMMON)
        elif len(weight.shape) == 1 or role.endswith("bias"):
            self._constant(tensor, 0.0)
        elif weight.part == "router" and router is not None:
            self._router(tensor, router)
        else:
            scale = 1 / sqrt(tensor.shape[-1])
            if last in ("o_proj", "down_proj"):
                scale *= self._small
            self._random(tensor, scale)

    def _constant(self, tensor: Tensor, value: float) -> None:
        values = np.full(prod(tensor.shape), value, dtype=np.float32)
        self._shards.write(tensor.name, 0, from_float32(values, tensor.dtype).data)

    def _router(self, tensor: Tensor, router: Router) -> None:
        experts, hidden = tensor.shape
        rows = self._rng.standard_normal((experts, hidden), dtype=np.float32)
        rows -= rows.mean(axis=1, keepdims=True)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        # a normed hidden state is c 1 + sqrt(1 - c^2) noise: scores of standard deviation 1, and
        # c x hidden for each unit along 1
        rows /= np.float32(_PER_TOKEN)
        rows += (router.offsets / (COMMON * hidden)).astype(np.float32)[:, None]
        self._shards.write(tensor.name, 0, from_float32(rows, tensor.dtype).data)

    def _random(self, tensor: Tensor, scale: float) -> None:
        exponent = round(np.log2(scale))  # few different scales, so that few buffers are kept
        key = (exponent, tensor.dtype)
        if key not in self._scaled:
            scaled = self._normal * np.float32(2.0**exponent)
            self._scaled[key] = from_float32(scaled, tensor.dtype).data.cast("B")
        buffer = self._scaled[key]
        width = len(buffer) // _BUFFER_VALUES
        place = 0
        while place < tensor.size_bytes:
            start = int(self._rng.integers(_BUFFER_VALUES)) * width
            piece = buffer[start : start + tensor.size_bytes - place]
            self._shards.write(tensor.name, place, piece)
            place += len(piece)


class Walk:
    """The cycle through the vocabulary, and the embedding and head that make a model follow it.

    Special tokens are not on it. Place p of the cycle is the word ``3 + (p * stride) mod words``.
    """

    def __init__(self, vocab_size: int, hidden: int, rho: float, seed: int) -> None:
        self._words = vocab_size - len(SPECIAL_TOKENS)
        self._vocab_size, self._hidden, self._rho, self._seed = vocab_size, hidden, rho, seed
        # neighbours on the cycle lie far apart in the table, as words of a text do
        stride = max(int(self._words * 0.618), 1)
        while gcd(stride, self._words) != 1:
            stride += 1
        self._stride = stride

    def token(self, place: int) -> int:
        """The word at ``place`` of the cycle."""
        return len(SPECIAL_TOKENS) + place % self._words * self._stride % self._words

    def prompts(self, count: int, tokens: int) -> list[list[int]]:
        """``count`` prompts of ``tokens`` words each, beginning at even distances."""
        first = int(np.random.default_rng([self._seed, 3]).integers(self._words))
        starts = [first + index * self._words // count for index in range(count)]
        return [[self.token(start + step) for step in range(tokens)] for start in starts]

    def write(
        self,
        shards: Shards,
        embedding: str,
        head: str,
        dtype: str,
        wrote: Callable[[int], None],
    ) -> None:
        """Write both tables, row by row in the order of the cycle."""
        rho, hidden = self._rho, self._hidden
        rng = np.random.default_rng([self._seed, 4])
        row_bytes = from_float32(np.zeros(hidden, np.float32), dtype).nbytes
        length = max(_CHUNK_BYTES // (4 * hidden), 4)
        gain = np.float32(_LOGIT / (_PER_TOKEN * sqrt(hidden)) / (1 - rho**2))
        before = self._noise(rng, 1)[0]
        places = range(0, self._words, length)
        current = self._chunk(rng, before, min(length, self._words))
        for begin in places:
            end = min(begin + length, self._words)
            ahead = min(end + length, self._words) - end
            following = self._chunk(rng, current[-1], ahead) if ahead else None
            # dual to the walk: rho^2 is missing at its two ends
            left = np.concatenate([before[None] if begin else np.zeros_like(before)[None], current])
            after = following[:1] if following is not None else np.zeros_like(current[:1])
            right = np.concatenate([current[1:], after])
            own = np.full((len(current), 1), 1 + rho**2, dtype=np.float32)
            if begin == 0:
                own[0] = 1.0
            if end == self._words:
                own[-1] = 1.0
            dual = gain * (own * current - np.float32(rho) * (left[:-1] + right))
            rows = np.float32(COMMON) + np.float32(_PER_TOKEN * sqrt(hidden)) * current
            embedded, scored = from_float32(rows, dtype), from_float32(dual, dtype)
            for index, place in enumerate(range(begin, end)):
                shards.write(embedding, self.token(place) * row_bytes, embedded[index].data)
                shards.write(head, self.token(place + 1) * row_bytes, scored[index].data)
            wrote(2 * row_bytes * len(current))
            before = current[-1]
            if following is not None:
                current = following
        special = self._noise(rng, len(SPECIAL_TOKENS))
        rows = np.float32(COMMON) + np.float32(_PER_TOKEN * sqrt(hidden)) * special
        shards.write(embedding, 0, from_float32(rows, dtype).data)
        # files are created empty, so the special rows of the head are 0 already
        wrote(2 * row_bytes * len(SPECIAL_TOKENS))

    def _noise(self, rng: np.random.Generator, rows: int) -> npt.NDArray[np.float32]:
        """Random directions that are orthogonal to the common one."""
        noise = rng.standard_normal((rows, self._hidden), dtype=np.float32)
        noise -= noise.mean(axis=1, keepdims=True)
        noise /= np.float32(sqrt(self._hidden))
        return noise

    def _chunk(
        self, rng: np.random.Generator, before: npt.NDArray[np.float32], rows: int
    ) -> npt.NDArray[np.float32]:
        """The next ``rows`` of the autoregression after ``before``."""
        chunk = self._noise(rng, rows)
        chunk *= np.float32(sqrt(1 - self._rho**2))
        for row in chunk:
            row += np.float32(self._rho) * before
            before = row
        return chunk
