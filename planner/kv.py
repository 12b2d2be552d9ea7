"""Where keys and values may lie: on the device, or in the tier below."""

from __future__ import annotations

from typing import Literal, get_args

from planner.documents import ModelSpec
from solvers.errors import OptionError, UnsupportedError

__all__ = ["KV_PLACES", "Place", "check_place", "kv_stays"]

Place = Literal["auto", "device", "below"]

KV_PLACES: tuple[Place, ...] = get_args(Place)
"""What can be asked for; ``auto``: below only where the device is small for them."""


def kv_stays(model: ModelSpec, device: str) -> str | None:
    """Why keys and values can lie on the device alone; None where they can lie below."""
    if device != "cpu":
        return f"keys and values stay on the device where that is {device!r}"
    if model.stored is not None:
        return "keys and values stay on the device with a compressed store"
    for layer in model.layers:
        if layer.state_bytes or not layer.kv_bytes_per_token:
            return f"layer {layer.index} keeps no keys and values of each token"
    return None


def check_place(kv: str, model: ModelSpec, device: str) -> None:
    """Refuse a place that is unknown or cannot be had.

    Raises
    ------
    OptionError
        If it is none of ``KV_PLACES``.
    UnsupportedError
        If keys and values are asked to lie below, and cannot.
    """
    if kv not in KV_PLACES:
        raise OptionError(f"--kv {kv!r} is unknown; choose from {', '.join(KV_PLACES)}")
    why = kv_stays(model, device) if kv == "below" else None
    if why is not None:
        raise UnsupportedError(f"{model.name}: --kv below cannot be had: {why}")
