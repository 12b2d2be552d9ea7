"""Profile folders: read whole, or refused by the document that does not fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.documents import (
    Channel,
    CostProfile,
    Curve,
    Document,
    Figure,
    Hardware,
    LayerSpec,
    ModelSpec,
    ProfileIndex,
    Surface,
    Tier,
    document_hash,
    load_document,
    write_document,
)
from planner.profiles import load_profile
from planner.routing import TraceArrays, write_trace
from solvers.errors import DocumentError, StaleError

FINGERPRINT = "f" * 64


def model_of(**changed: Any) -> ModelSpec:
    layer = LayerSpec(0, 64, 16, 8, 0, 0, 2, 1, 96, 4, 16)
    values: dict[str, Any] = {
        "name": "m", "family": "mixtral", "dtype": "float32", "dtype_bytes": 4, "hidden_size": 8,
        "vocab_size": 16, "attention_heads": 1, "kv_heads": 1, "head_dim": 8, "max_context": 64,
        "layers": (layer,), "embedding_bytes": 512, "head_bytes": 512, "final_norm_bytes": 32,
        "other_bytes": 0, "tied": False, "parameters": 400, "active_parameters": 300,
        "bytes_source": "headers", "fingerprint": FINGERPRINT,
    }  # fmt: skip
    return ModelSpec(**{**values, **changed})


def hardware_of() -> Hardware:
    figure = Figure(1e9, "measured", 1e6, 9)
    channel = Channel("disk", figure, Figure(100.0, "measured", 1.0, 9))
    return Hardware("here", "cpu", "x", 2, (Tier("device", 10**6, "spec"),), (channel,))


def costs_of(model: ModelSpec, hardware: Hardware) -> CostProfile:
    curve = Curve((1, 8), (100, 800), (1, 2), (5, 5), "measured")
    surface = Surface((8,), (curve,))
    one = Figure(1.0, "measured", 0.0, 3)
    return CostProfile(
        document_hash(model),
        document_hash(hardware),
        "float32",
        dict.fromkeys(("embed", "router", "expert", "combine", "head", "sample"), curve),
        surface,
        surface,
        one,
        one,
        one,
    )


def write_profile(folder: Path, model: ModelSpec | None = None) -> Path:
    folder.mkdir()
    model = model or model_of()
    hardware = hardware_of()
    costs = costs_of(model, hardware)
    column = np.arange(3, dtype=np.int32)
    arrays = TraceArrays(np.zeros((3, 1, 1), np.uint16), column * 0, column, np.zeros(3, np.uint8))
    routing = write_trace(
        folder, arrays, model_hash=document_hash(model), moe_layers=(0,), expert_count=2
    )
    for name, document in (("hardware", hardware), ("model", model), ("costs", costs)):
        write_document(document, folder / f"{name}.json")
    index = ProfileIndex(
        "checkpoint", None, FINGERPRINT, None, 10**6, document_hash(hardware),
        document_hash(model), document_hash(costs), document_hash(routing),
    )  # fmt: skip
    write_document(index, folder / "profile.json")
    return folder


def change(path: Path, cls: type[Document], **changed: Any) -> None:
    write_document(dataclasses.replace(load_document(cls, path), **changed), path)


def test_a_profile_is_read_back(tmp_path: Path) -> None:
    profile = load_profile(write_profile(tmp_path / "p"))
    assert profile.model == model_of()
    assert profile.hardware == hardware_of()
    assert profile.costs.curves["expert"](8) == 800
    assert profile.arrays.experts.shape == (3, 1, 1)
    assert profile.index.memory_bytes == 10**6


def test_a_folder_named_from_here_is_kept_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(tmp_path / "p")
    monkeypatch.chdir(tmp_path)
    assert load_profile(Path("p")).folder == tmp_path / "p"


def test_a_missing_folder_or_document_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="moeplan profile"):
        load_profile(tmp_path / "none")
    for name in ("profile", "hardware", "model", "costs", "routing"):
        folder = write_profile(tmp_path / name)
        (folder / f"{name}.json").unlink()
        with pytest.raises(DocumentError, match=rf"{name}\.json: no such file"):
            load_profile(folder)


@pytest.mark.parametrize(
    ("cls", "name", "changed"),
    [
        (Hardware, "hardware", {"threads": 3}),
        (ModelSpec, "model", {"name": "other"}),
        (CostProfile, "costs", {"dtype": "bfloat16"}),
    ],
)
def test_a_changed_document_is_named(
    cls: type[Document], name: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_profile(tmp_path / "p")
    change(folder / f"{name}.json", cls, **changed)
    with pytest.raises(StaleError, match=f"the {name} document was changed") as caught:
        load_profile(folder)
    assert caught.value.document == name


def test_a_changed_trace_is_named(tmp_path: Path) -> None:
    folder = write_profile(tmp_path / "p")
    other = write_profile(tmp_path / "q", model_of(name="other"))
    (folder / "routing.json").write_bytes((other / "routing.json").read_bytes())
    with pytest.raises(StaleError) as caught:
        load_profile(folder)
    assert caught.value.document == "routing"


def test_documents_of_different_models_do_not_make_a_profile(tmp_path: Path) -> None:
    folder = write_profile(tmp_path / "p")
    other = write_profile(tmp_path / "q", model_of(name="other"))
    (folder / "costs.json").write_bytes((other / "costs.json").read_bytes())
    costs = document_hash(load_document(CostProfile, folder / "costs.json"))
    change(folder / "profile.json", ProfileIndex, costs_hash=costs)
    with pytest.raises(StaleError, match="of different models or machines"):
        load_profile(folder)
    change(other / "profile.json", ProfileIndex, checkpoint_fingerprint="0" * 64)
    with pytest.raises(StaleError, match="of different models or machines"):
        load_profile(other)


@pytest.mark.parametrize(
    ("part", "kind"), [("shared_expert_bytes", "shared_expert"), ("mlp_bytes", "dense_mlp")]
)
def test_costs_must_cover_the_model(part: str, kind: str, tmp_path: Path) -> None:
    layer = dataclasses.replace(model_of().layers[0], **{part: 8})
    folder = write_profile(tmp_path / "p", model_of(layers=(layer,)))
    with pytest.raises(DocumentError, match=f"no curve for {kind}"):
        load_profile(folder)
