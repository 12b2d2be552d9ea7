"""The model document: exact bytes of every part of every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from planner.documents.base import (
    STRICT,
    Added,
    Bytes,
    Document,
    Hash,
    Name,
    Positive,
    Tokens,
    Units,
)
from solvers.counting import counted

__all__ = [
    "OWN",
    "ExpertForm",
    "FormName",
    "LayerSpec",
    "ModelSpec",
    "QuantizedExperts",
    "StoredShares",
]

FormName = Literal["own", "int8-1", "int4-1"]
"""How an expert is stored: ``own``, as the checkpoint has it, or quantized."""
OWN: FormName = "own"
Parts = Annotated[int, Field(ge=0, le=1 << 40)]
"""Thousand-millionths."""

Width = Annotated[int, Field(ge=1, le=1 << 24)]
Experts = Annotated[int, Field(ge=0, lt=1 << 16)]
"""A routing trace holds them in 16 bits."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer.

    Attributes
    ----------
    index
        0-based.
    attention_bytes, router_bytes, norm_bytes, shared_expert_bytes, mlp_bytes
        Bytes of the dense part's pieces as stored in the checkpoint; ``mlp_bytes`` is the dense
        feed-forward of a layer without experts, else 0.
    experts, top_k
        Number of routed experts (0: a dense layer) and how many each token chooses.
    expert_bytes
        Bytes of one routed expert (all experts of a layer are alike in the checkpoint).
    expert_intermediate
        Width of one routed expert's hidden layer, 0 for a dense layer.
    kv_bytes_per_token
        Key and value (or compressed latent) bytes that one token of one sequence adds.
    window
        Sliding-window length in tokens, or None for full attention.
    state_bytes
        Bytes of a state of fixed size that each sequence keeps (linear attention); 0 in most
        models.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    index: Units
    attention_bytes: Bytes
    router_bytes: Bytes
    norm_bytes: Bytes
    shared_expert_bytes: Bytes
    mlp_bytes: Bytes
    experts: Experts
    top_k: Experts
    expert_bytes: Bytes
    expert_intermediate: Annotated[int, Field(ge=0, le=1 << 24)]
    kv_bytes_per_token: Bytes
    window: Positive | None = None
    state_bytes: Bytes = 0

    def __post_init__(self) -> None:
        if self.top_k > self.experts:
            raise ValueError(f"top_k is {self.top_k} of only {counted(self.experts, 'expert')}")
        parts = (self.top_k, self.expert_bytes, self.expert_intermediate)
        if any((part > 0) != (self.experts > 0) for part in parts):
            raise ValueError("experts, top_k, expert_bytes and expert_intermediate do not agree")

    @property
    def dense_bytes(self) -> int:
        """Bytes of what every token of the layer needs."""
        return (
            self.attention_bytes
            + self.router_bytes
            + self.norm_bytes
            + self.shared_expert_bytes
            + self.mlp_bytes
        )

    @property
    def total_bytes(self) -> int:
        """Dense part and all experts."""
        return self.dense_bytes + self.experts * self.expert_bytes


Share = Annotated[float, Field(gt=0.0, le=1.0)]


@dataclass(frozen=True, slots=True)
class StoredShares:
    """Bytes that lie on the disk for each byte of dense parts, experts and head tiles, where a
    store has them exactly compressed."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    dense: Share
    expert: Share
    head: Share


@dataclass(frozen=True, slots=True)
class QuantizedExperts:
    """How a store has its experts quantized.

    Attributes
    ----------
    format
        Bits of a value and version of the format: see ``executor.quantized``.
    group
        Values that share a scale; None: as the format says (``planner.quantized.group_of``).
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    format: Literal["int8-1", "int4-1"]
    group: Positive | None = None


@dataclass(frozen=True, slots=True)
class ExpertForm:
    """A quantized form that a store has of every expert, beside the checkpoint's own.

    Attributes
    ----------
    quantized
        Format and group.
    expert_bytes
        By layer: bytes of one expert; 0 where the layer has none.
    errors_ppb
        By layer and expert: root of the squared errors' sum over that of the expert's weights, in
        thousand-millionths, rounded up; measured while packing.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    quantized: QuantizedExperts
    expert_bytes: tuple[Bytes, ...]
    errors_ppb: tuple[tuple[Parts, ...], ...]

    @property
    def name(self) -> FormName:
        """As plans name it."""
        return self.quantized.format


@dataclass(frozen=True)
class ModelSpec(Document):
    """A model, as its checkpoint has it.

    Attributes
    ----------
    name
        Folder or file name, for people.
    family
        ``model_type`` of the configuration (``mixtral``, ``qwen3_moe``, ...).
    dtype, dtype_bytes
        Storage type of most weights (of those not packed in 4 bits), and its width.
    layers
        In the order in which a pass goes through them.
    embedding_bytes, head_bytes, final_norm_bytes
        Outside the layers. ``head_bytes`` is 0 where the head is tied to the embedding. An
        encoder's final norm counts with the decoder's.
    other_bytes
        Tensors outside the layers that a run does not need on the device (none in most models):
        prediction layers that only training uses, a vision tower.
    parameters, active_parameters
        Totals without prediction layers and vision towers; active: what one token touches
        (embedding counted once).
    bytes_source
        ``headers``: read from safetensors headers. ``config``: computed from the configuration.
    fingerprint
        SHA-256 over configuration, weight headers, file sizes and sampled blocks of the weights;
        for a bare configuration over that alone.
    synthetic
        True where the checkpoint says of itself that its weights are random.
    encoder_layers
        Always empty: documents from before had an encoder's layers here.
    stored
        What a compressed store has of it; None where weights are read as they are.
    quantized
        How a store has its experts quantized, whose bytes are then the layers' ``expert_bytes``;
        None where they are as in the checkpoint.
    forms
        Quantized forms of every expert that a store has beside the checkpoint's own, no format
        twice; a plan chooses between them. None in most stores.
    encoder
        Of an encoder-decoder model: how many of ``layers`` are its encoder's, the first ones; None
        in most models.
    """

    kind: ClassVar[str] = "model"

    name: Name
    family: Name
    dtype: Literal["float32", "bfloat16", "float16", "float8"]
    dtype_bytes: Annotated[int, Field(ge=1, le=8)]
    hidden_size: Width
    vocab_size: Width
    attention_heads: Width
    kv_heads: Width
    head_dim: Width
    max_context: Tokens
    layers: tuple[LayerSpec, ...]
    embedding_bytes: Bytes
    head_bytes: Bytes
    final_norm_bytes: Bytes
    other_bytes: Bytes
    tied: bool
    parameters: Positive
    active_parameters: Positive
    bytes_source: Literal["headers", "config"]
    fingerprint: Hash
    synthetic: bool = False
    encoder_layers: tuple[LayerSpec, ...] = ()
    stored: StoredShares | None = None
    quantized: Added[QuantizedExperts] = None
    encoder: Added[Positive] = None
    forms: Added[tuple[ExpertForm, ...]] = None

    def __post_init__(self) -> None:
        if self.encoder_layers:
            raise ValueError("encoder_layers: is not empty, as an earlier version wrote it")
        if [layer.index for layer in self.layers] != list(range(len(self.layers))):
            raise ValueError("layers: the indices are not 0, 1, 2, ...")
        if len(self.layers) <= self.encoder_depth:
            raise ValueError("layers: there is none" + (" of the decoder" if self.encoder else ""))
        if self.tied and self.head_bytes:
            raise ValueError("head_bytes: a tied head has no bytes of its own")
        self._check_forms()

    def _check_forms(self) -> None:
        if self.forms is None:
            return
        if self.quantized is not None or self.stored is not None:
            raise ValueError("forms: its experts are quantized or compressed already")
        names = [form.name for form in self.forms]
        if not names or len(set(names)) != len(names):
            raise ValueError("forms: there is none, or one twice")
        experts = [layer.experts for layer in self.layers]
        for form in self.forms:
            if [len(errors) for errors in form.errors_ppb] != experts:
                raise ValueError(f"forms: {form.name} does not have an error for each expert")
            if [size > 0 for size in form.expert_bytes] != [count > 0 for count in experts]:
                raise ValueError(f"forms: {form.name} does not have bytes for each layer's experts")

    def form_bytes(self, layer: int, form: FormName) -> int:
        """Bytes of one of a layer's experts in a form.

        Raises
        ------
        KeyError
            If there is no such form.
        """
        if form == OWN:
            return self.layers[layer].expert_bytes
        return {one.name: one for one in self.forms or ()}[form].expert_bytes[layer]

    def stored_share(self, kind: Literal["dense", "expert", "head"]) -> float:
        """Bytes that are read for each byte that a unit's copy brings."""
        if self.stored is None:
            return 1.0
        return {
            "dense": self.stored.dense,
            "expert": self.stored.expert,
            "head": self.stored.head,
        }[kind]

    @property
    def encoder_depth(self) -> int:
        """Layers of the encoder, 0 where there is none; the decoder begins with this index."""
        return self.encoder or 0

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Indices of the layers that have experts."""
        return tuple(layer.index for layer in self.layers if layer.experts)

    @property
    def total_bytes(self) -> int:
        """Bytes of all weights."""
        return (
            sum(layer.total_bytes for layer in self.layers)
            + self.embedding_bytes
            + self.head_bytes
            + self.final_norm_bytes
            + self.other_bytes
        )

    @property
    def expert_bytes(self) -> int:
        """Bytes of all routed experts of all layers."""
        return sum(layer.experts * layer.expert_bytes for layer in self.layers)
