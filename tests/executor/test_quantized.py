"""Quantized stores: half a scale off at most, and the results of a model with these weights."""

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

from executor import Engine, open_weights, pack, verify_store
from executor.quantized import QuantizedMatrix, layout_of_4_bits, quantize
from executor.store import StoreIndex, StoreUnit
from executor.units import check_policy
from planner.documents import (
    FormName,
    LayerPolicy,
    ModelSpec,
    Policy,
    QuantizedExperts,
    Workload,
)
from planner.documents import load_document as load
from planner.memory import smallest_policy
from planner.quantized import group_of, tile_spans
from solvers.errors import CheckpointError, DocumentError, OptionError, StaleError, UnsupportedError

INT8, INT4 = QuantizedExperts("int8-1"), QuantizedExperts("int4-1")
NEW_TOKENS = 4
TYPES = {"F32": np.float32, "F16": np.float16, "I8": np.int8, "U8": np.uint8, "BF16": np.uint16}


def quantized(bits: int, group: int | None = None) -> QuantizedExperts:
    return QuantizedExperts("int8-1" if bits == 8 else "int4-1", group)


# --- an independent reader of the format -----------------------------------------------------


def tensors_of(store: Path, unit: StoreUnit) -> dict[str, np.ndarray[Any, Any]]:
    with open(store / "weights.bin", "rb") as file:
        file.seek(unit.offset_bytes)
        data = file.read(unit.size_bytes)
    found = {}
    for one in unit.tensors:
        part = data[one.offset_bytes : one.offset_bytes + one.size_bytes]
        values = np.frombuffer(part, TYPES[one.dtype])
        if one.dtype == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        found[one.role] = values.reshape(one.shape)
    return found


def matrix_of(tensors: dict[str, np.ndarray[Any, Any]], role: str) -> torch.Tensor:
    """What a store says that a matrix is, value by value."""
    values, scales = tensors[f"{role}.values"], tensors[f"{role}.scales"].astype(np.float64)
    if values.dtype == np.int8:
        group = values.shape[1] // scales.shape[1]
        return torch.from_numpy(values * np.repeat(scales, group, axis=1))
    groups, rows, _ = scales.shape
    columns = 2 * values.size // rows
    levels = np.zeros((rows, columns), np.int64)
    at = 0
    for first in range(0, rows, 64):
        half = min(64, rows - first) // 2
        block = values[at : at + columns * half].reshape(columns, half)
        levels[first : first + half] = (block & 15).T
        levels[first + half : first + 2 * half] = (block >> 4).T
        at += columns * half
    wide = np.repeat(scales, columns // groups, axis=0)
    return torch.from_numpy((levels - 8) * wide[:, :, 0].T + wide[:, :, 1].T)


def reference(checkpoint: Path, store: Path, policy: Policy | None = None) -> Any:
    """transformers' model of the checkpoint with the experts that the store has, or with those that
    a policy reads of a store of several forms."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    transposed = model.config.model_type == "gpt_oss"
    for unit in load(StoreIndex, store / "store.json").units:
        form, is_expert, place = unit.name.rpartition("expert.")
        if not is_expert:
            continue
        layer, expert = map(int, place.split("."))
        if policy is not None and form != f"{policy.layers[layer].form(expert)}.":
            continue
        tensors = tensors_of(store, unit)
        experts = model.model.layers[layer].mlp.experts
        with torch.no_grad():
            for name, role in (("gate_up_proj", "gate_up"), ("down_proj", "down")):
                matrix = matrix_of(tensors, role)
                getattr(experts, name)[expert] = matrix.T if transposed else matrix
    return model


# --- values --------------------------------------------------------------------------------------


@st.composite
def matrices(draw: st.DrawFn) -> tuple[torch.Tensor, QuantizedExperts, int]:
    """Normal values and far ones, zeros, constants, in each of three types."""
    rows, group = draw(st.sampled_from([2, 6, 64, 70, 130])), draw(st.sampled_from([16, 20, 64]))
    columns = group * draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    scale, offset = draw(st.sampled_from([0.0, 1e-6, 0.02, 3.0])), draw(st.sampled_from([0, 1, -9]))
    matrix = torch.randn(rows, columns, generator=generator) * scale + offset
    matrix[0, :group] = draw(st.sampled_from([0.0, 1.0, -2.5]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    bits = draw(st.sampled_from([4, 8]))
    how = quantized(bits, draw(st.sampled_from([None, group])))
    size = group_of(how, columns) or group
    return matrix.to(dtype), how, size


@settings(max_examples=40, deadline=None)
@given(matrices())
def test_values_are_half_a_scale_off_at_most(
    case: tuple[torch.Tensor, QuantizedExperts, int],
) -> None:
    matrix, how, group = case
    made, squares = quantize(matrix, how, group)
    tensors = {
        "m.values": made.values.numpy(),
        "m.scales": made.scales.float().numpy(),
    }
    got, want = matrix_of(tensors, "m"), matrix.double()
    by_row = made.scales.double() if made.bits == 8 else made.scales[:, :, 0].double().t()
    scales = by_row.repeat_interleave(group, dim=1)
    # beside it only what float32 rounds when it looks for the level
    slack = scales * 0.0006 + want.abs() * 2**-22
    assert ((got - want).abs() <= scales / 2 + slack).all()
    # equal values, as of experts that were cut, stay what they are
    alike = want.unflatten(1, (-1, group))
    alike = (alike.amax(dim=2) == alike.amin(dim=2)).repeat_interleave(group, dim=1)
    if made.bits == 4:
        assert torch.equal(got[alike], want[alike])
    # norms differ by no more than the norm of what float32 rounds in each value
    off = float((got - want).norm())
    assert abs(squares**0.5 - off) <= 1e-5 * off + float(want.norm()) * 2**-22
    # numbers in tiles are these values, rounded once
    spans = tile_spans(made.rows, made.columns, matrix.element_size())
    tiles = torch.cat([made.numbers(*span).t() for span in spans]).double()
    step = torch.finfo(matrix.dtype).eps
    assert ((tiles - got).abs() <= got.abs() * step + torch.finfo(matrix.dtype).tiny).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 8, 17])
def test_kernels_and_tiles_multiply_alike(bits: int, rows: int) -> None:
    torch.manual_seed(3)
    weights = (torch.randn(192, 128) * 0.05).bfloat16()
    inputs = torch.randn(rows, 128).bfloat16()
    how = quantized(bits)
    made, _ = quantize(weights, how, group_of(how, 128))
    exact = inputs.double() @ matrix_of(
        {"m.values": made.values.numpy(), "m.scales": made.scales.float().numpy()}, "m"
    ).T  # fmt: skip
    got = made.product(inputs)
    assert got.dtype == torch.bfloat16
    # weights and results are rounded to 8 bits; the sums are of 128
    assert ((got - exact).abs() <= exact.abs() / 128 + 0.01).all()


def test_kernel_of_4_bits_is_used_where_its_layout_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = quantize(torch.randn(64, 64).bfloat16(), INT4, 64)
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert layout_of_4_bits()
    monkeypatch.setattr(QuantizedMatrix, "numbers", lambda *_: pytest.fail("made numbers"))
    monkeypatch.setattr("executor.quantized.layout_of_4_bits", lambda: True)
    made.product(torch.ones(16, 64).bfloat16())
    for inputs in (torch.ones(17, 64).bfloat16(), torch.ones(1, 64)):
        with pytest.raises(pytest.fail.Exception):
            made.product(inputs)


def test_tiles_have_few_shapes() -> None:
    # Mixtral's gate and up: 448 blocks of 64 rows of 4,096 columns, 512 KiB each in bfloat16
    spans = tile_spans(28672, 4096, 2)
    assert (spans[0], spans[-1], len(spans)) == ((0, 256), (28416, 28672), 112)
    # five blocks of 32 KiB and 16 rows left
    assert tile_spans(336, 256, 2) == [(0, 320), (320, 336)]
    assert tile_spans(48, 64, 4) == [(0, 48)]


# --- stores --------------------------------------------------------------------------------------


def prompts_of(vocabulary: int) -> list[list[int]]:
    return [[3 + (7 * i + 11 * j) % (vocabulary - 3) for j in range(9 - i)] for i in range(5)]


def policy_of(model: ModelSpec) -> Policy:
    """Some resident, some prefetched, the others on demand."""
    layers = tuple(
        LayerPolicy(False, (0,), (3, 2)) if spec.experts else LayerPolicy(False, (), ())
        for spec in model.layers
    )
    least = smallest_policy(model, model.dtype_bytes)
    return replace(least, layers=layers, n_batches=2, batch_size=3, slots=4, dense_slots=2)


def run(
    checkpoint: Path, store: Path, helpers: Any, policy: Policy | None = None
) -> tuple[list[list[int]], torch.Tensor, int]:
    """Tokens, the first pass's logits, bytes read; the run stays within what the account says."""
    with open_weights(checkpoint, store) as source:
        model = source.model
    policy = policy or policy_of(model)
    plan = helpers.plan(checkpoint, policy, Workload(5, 9, NEW_TOKENS), store=store)
    logits: list[torch.Tensor] = []
    with Engine.from_plan(plan, verify=True) as engine:
        operations = engine._device.operations
        head_tile = operations.head_tile

        def kept(tile: int, weight: torch.Tensor) -> torch.Tensor:
            part = head_tile(tile, weight)
            if len(logits) < policy.head_tiles:
                logits.append(part.float().clone())
            return part

        operations.head_tile = kept  # type: ignore[method-assign]
        outputs = engine.generate(prompts_of(model.vocab_size))
        totals = engine.trace().totals
    assert totals.device_peak_bytes <= totals.device_budget_bytes
    return (
        [list(output.token_ids) for output in outputs],
        torch.cat(logits, dim=1),
        totals.bytes_read,
    )


def by_transformers(model: Any, helpers: Any) -> tuple[list[list[int]], torch.Tensor]:
    """Each prompt alone."""
    tokens, logits = [], []
    for prompt in prompts_of(model.config.vocab_size):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            logits.append(model(ids).logits[0, -1].float())
        tokens.append(helpers.continuation(model, prompt, NEW_TOKENS))
    return tokens, torch.stack(logits)


@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("mixtral", quantized(8, 16)),
        ("mixtral", INT4),
        ("qwen3_moe", INT8),
        ("qwen3_moe", INT4),
        ("gpt_oss", INT4),
    ],
)
def test_equals_a_model_of_the_dequantized_weights(
    family: str,
    how: QuantizedExperts,
    checkpoint_of: Callable[..., Path],
    helpers: Any,
    tmp_path: Path,
) -> None:
    checkpoint, store = checkpoint_of(family), tmp_path / "store"
    summary = pack(checkpoint, store, quantize=how)
    assert summary.quantized == how
    assert summary.relative_error is not None
    assert 0 < summary.relative_error < (0.02 if how.format == "int8-1" else 0.15)
    want, logits = by_transformers(reference(checkpoint, store), helpers)
    got, ours, _ = run(checkpoint, store, helpers)
    assert got == want
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4 * float(logits.abs().max()))


# --- several forms -------------------------------------------------------------------------------

CYCLE: tuple[FormName, ...] = ("own", "int8-1", "int4-1", "int4-1", "int8-1", "own", "int4-1")


def mixed(policy: Policy, model: ModelSpec) -> Policy:
    """Residents, prefetched ones and those on demand in all forms; one layer as in the
    checkpoint."""
    layers = [
        replace(layer, forms=tuple(CYCLE[(3 * at + one) % 7] for one in range(spec.experts)))
        for at, (layer, spec) in enumerate(zip(policy.layers, model.layers, strict=True))
    ]
    layers[-1] = replace(layers[-1], forms=())
    return replace(policy, layers=tuple(layers))


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_equals_a_model_of_just_these_dequantized_experts(
    family: str, checkpoint_of: Callable[..., Path], helpers: Any, tmp_path: Path
) -> None:
    checkpoint, store = checkpoint_of(family, num_hidden_layers=3), tmp_path / "store"
    summary = pack(checkpoint, store, forms=(INT8, INT4))
    assert 0 < summary.form_errors["int8-1"] < 0.02 < summary.form_errors["int4-1"] < 0.15
    with open_weights(checkpoint, store) as source:
        model = source.model
    policy = mixed(policy_of(model), model)
    assert {form for layer in policy.layers for form in layer.forms} == {"own", "int8-1", "int4-1"}
    want, logits = by_transformers(reference(checkpoint, store, policy), helpers)
    got, ours, read = run(checkpoint, store, helpers, policy)
    assert got == want
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4 * float(logits.abs().max()))
    # and with none of them the checkpoint's own results, of more bytes
    own, plain, more = run(checkpoint, store, helpers)
    whole = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    want, logits = by_transformers(whole, helpers)
    assert own == want
    torch.testing.assert_close(plain, logits, rtol=1e-4, atol=1e-4 * float(logits.abs().max()))
    assert not torch.allclose(ours, plain, rtol=1e-3)
    assert read < more


def test_store_of_several_forms(
    bulk: tuple[Path, dict[int, Path]], tmp_path: Path, helpers: Any
) -> None:
    """Units of each form are those of a store in that form alone; errors are what these say."""
    checkpoint, stores = bulk
    store = tmp_path / "store"

    def stopped(done: int, whole: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(checkpoint, store, stopped, forms=(INT8, INT4))
    with pytest.raises(StaleError, match="other compression or quantization"):
        pack(checkpoint, store, forms=(INT8,))
    # what was written is made once more, and its errors with it
    assert pack(checkpoint, store, forms=(INT8, INT4)).reused_units > 0
    index = verify_store(checkpoint, store)
    found = {unit.name: unit for unit in index.units}
    for bits, form in ((16, ""), (8, "int8-1."), (4, "int4-1.")):
        for unit in load(StoreIndex, stores[bits] / "store.json").units:
            if unit.name.startswith("expert."):
                same = found[f"{form}{unit.name}"]
                assert (same.checksum, same.tensors) == (unit.checksum, unit.tensors)
                assert (same.error_ppb is None) == (not form)
    name = "expert.1.3"
    own = tensors_of(store, found[name])
    plain = torch.cat([torch.from_numpy(part).flatten() for part in own.values()]).double()
    parts = tensors_of(store, found[f"int4-1.{name}"])
    # gate and up are one matrix, and lie one behind the other
    made = torch.cat([matrix_of(parts, role).flatten() for role in ("gate_up", "down")])
    error = float((made - plain).norm() / plain.norm())
    assert found[f"int4-1.{name}"].error_ppb == pytest.approx(error * 1e9, rel=1e-4)
    with open_weights(checkpoint, store) as source:
        model = source.model
    forms = model.forms
    assert forms is not None
    assert [form.name for form in forms] == ["int8-1", "int4-1"]
    assert forms[1].errors_ppb[1][3] == found[f"int4-1.{name}"].error_ppb
    assert forms[1].expert_bytes[1] == found[f"int4-1.{name}"].size_bytes
    # bfloat16, with torch's kernels for a few rows: within the account, and near the reference
    policy = mixed(policy_of(model), model)
    _, ours, _ = run(checkpoint, store, helpers, policy)
    _, want = by_transformers(reference(checkpoint, store, policy), helpers)
    assert float((ours - want).abs().max()) < 0.03 * float(want.abs().max())
    # the same again is the same; anything else is refused
    assert pack(checkpoint, store, forms=(INT8, INT4)).fingerprint == index.fingerprint
    with pytest.raises(CheckpointError, match=r"as they are and in int8-1, groups by its rule and"):
        pack(checkpoint, store)
    with pytest.raises(OptionError, match="each format once"):
        pack(checkpoint, tmp_path / "new", forms=(INT4, INT4))
    with pytest.raises(OptionError, match="neither quantized as a whole nor compressed"):
        pack(checkpoint, tmp_path / "new", forms=(INT4,), compress="exact")
    assert not (tmp_path / "new").exists()
    helpers.damage(store, f"int4-1.{name}", 100)
    with pytest.raises(CheckpointError, match=r"int4-1\.expert\.1\.3 does not match its checksum"):
        open_weights(checkpoint, store)


def test_form_that_a_store_does_not_have_is_refused(
    bulk: tuple[Path, dict[int, Path]], helpers: Any
) -> None:
    checkpoint, stores = bulk
    with open_weights(checkpoint, stores[16]) as source:
        policy = smallest_policy(source.model, 2)
    cases: tuple[tuple[tuple[FormName, ...], str], ...] = (
        (
            ("int8-1",) * 8,
            "forms: int8-1, which the store does not have: its .* are as in the checkpoint$",
        ),
        (("own",) * 7, "forms: 7 forms, the layer has 8 experts"),
    )
    for forms, message in cases:
        layers = (policy.layers[0], replace(policy.layers[1], forms=forms))
        with pytest.raises(DocumentError, match=rf"policy\.layers\.1\.{message}"):
            check_policy(source.model, replace(policy, layers=layers))


def test_group_that_does_not_divide_is_refused(
    checkpoint_of: Callable[..., Path], tmp_path: Path
) -> None:
    # groups of 20 divide the 40 columns of down, not the 64 of gate and up
    with pytest.raises(
        UnsupportedError,
        match=r"64 columns cannot be cut into groups of 20 \(try 16, 32, 64\)",
    ):
        pack(checkpoint_of("qwen3_moe"), tmp_path / "store", quantize=quantized(8, 20))
    assert not (tmp_path / "store").exists()


@pytest.fixture(scope="module")
def bulk(
    checkpoint_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[int, Path]]:
    """A bfloat16 checkpoint whose experts have whole blocks, and stores by bits (16: as it is)."""
    checkpoint = checkpoint_of(
        "mixtral", torch.bfloat16, hidden_size=128, intermediate_size=192, num_hidden_layers=2
    )
    folder = tmp_path_factory.mktemp("quantized")
    stores = {bits: folder / str(bits) for bits in (16, 8, 4)}
    pack(checkpoint, stores[16])
    for bits in (8, 4):
        pack(checkpoint, stores[bits], quantize=quantized(bits))
    return checkpoint, stores


def test_reduced_precision_by_kernels_and_fewer_bytes(
    bulk: tuple[Path, dict[int, Path]], helpers: Any
) -> None:
    checkpoint, stores = bulk
    read = {}
    for bits, store in stores.items():
        with open_weights(checkpoint, store) as source:
            model, plain = source.model, source.checkpoint.model
            assert (model == plain) == (bits == 16)
        # int8: a byte a value and a scale a row; int4: half of one, and two numbers a group
        values = 3 * 128 * 192
        scales = {16: 0, 8: 2 * (384 + 128), 4: 4 * values // 64}[bits]
        assert model.layers[0].expert_bytes == values * bits // 8 + scales
        # all of it streams, so what is read is mostly experts
        policy = replace(smallest_policy(model, 2), batch_size=5)
        _, logits, read[bits] = run(checkpoint, store, helpers, policy)
        if bits < 16:
            _, want = by_transformers(reference(checkpoint, store), helpers)
            # bfloat16 has 8 bits, and the reference rounds weights to them
            assert float((logits - want).abs().max()) < 0.03 * float(want.abs().max())
    assert read[4] < 0.5 * read[16]
    assert read[8] < 0.7 * read[16]


def test_store_says_what_it_is(bulk: tuple[Path, dict[int, Path]], tmp_path: Path) -> None:
    checkpoint, stores = bulk
    index = verify_store(checkpoint, stores[4])
    assert index.quantized == INT4
    tensors = {one.role: one for one in index.units[-3].tensors}
    assert index.units[-3].name == "expert.1.7"
    assert set(tensors) == {"gate_up.values", "gate_up.scales", "down.values", "down.scales"}
    assert tensors["gate_up.scales"].shape == (2, 384, 2)
    assert all(one.offset_bytes % 64 == 0 for one in tensors.values())
    # dense parts, head and embedding are the plain store's
    plain = {unit.name: unit.checksum for unit in verify_store(checkpoint, stores[16]).units}
    same = {unit.name for unit in index.units if unit.checksum == plain[unit.name]}
    assert same == {name for name in plain if not name.startswith("expert.")}
    # the same again is the same; anything else is refused by what is there and what was asked for
    assert pack(checkpoint, stores[4], quantize=INT4).fingerprint == index.fingerprint
    for how, message in (
        (None, r"with experts in int4-1, groups by its rule, not as they are"),
        (quantized(4, 32), r"not in int4-1, groups of 32"),
    ):
        with pytest.raises(CheckpointError, match=message):
            pack(checkpoint, stores[4], quantize=how)
    with pytest.raises(OptionError, match="either quantized or exactly compressed"):
        pack(checkpoint, tmp_path / "new", compress="exact", quantize=INT4)
    assert not (tmp_path / "new").exists()


def test_plan_of_another_store_is_refused(bulk: tuple[Path, dict[int, Path]], helpers: Any) -> None:
    checkpoint, stores = bulk
    with open_weights(checkpoint, stores[8]) as source:
        policy = smallest_policy(source.model, 2)
    plan = helpers.plan(checkpoint, policy, Workload(1, 4, 2), store=stores[8])
    with pytest.raises(StaleError, match="not the store that the plan was made for"):
        Engine.from_plan(plan, store=stores[4])


def test_damage_is_found(bulk: tuple[Path, dict[int, Path]], tmp_path: Path, helpers: Any) -> None:
    checkpoint, _ = bulk
    store = tmp_path / "store"
    pack(checkpoint, store, quantize=INT4)
    helpers.damage(store, "expert.0.5", 100)
    with pytest.raises(CheckpointError, match=r"expert\.0\.5 does not match its checksum"):
        open_weights(checkpoint, store)


def test_weights_that_are_no_numbers_are_refused(helpers: Any, tmp_path: Path) -> None:
    helpers.write_checkpoint("mixtral", tmp_path / "c", torch.float32, num_hidden_layers=1)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "c")
    with torch.no_grad():
        model.model.layers[0].mlp.experts.down_proj[3, 2, 1] = torch.inf
    model.save_pretrained(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"expert\.0\.3: a value is not finite"):
        pack(tmp_path / "c", tmp_path / "store", quantize=INT8)
    assert not (tmp_path / "store" / "store.json").exists()


@pytest.mark.parametrize("how", [INT8, INT4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_rounding_could_make_infinite_is_refused(
    how: QuantizedExperts, dtype: torch.dtype
) -> None:
    matrix = torch.full((64, 64), torch.finfo(dtype).max, dtype=dtype)
    with pytest.raises(CheckpointError, match="too large to be quantized: pack without"):
        quantize(matrix, how, 64)
    made, _ = quantize(matrix / 2, how, 64)
    assert made.numbers(0, 64).isfinite().all()
