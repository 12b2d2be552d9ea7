"""Compressed stores: the same tokens from fewer bytes, and one clear error for damage."""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executor import Engine, open_weights, pack, verify_store
from executor.blocks import FORMAT
from executor.chunks import Chunk
from executor.device import Device
from executor.direct import preadv
from executor.schedule import Schedule
from executor.store import StoreIndex
from executor.transfers import Following
from executor.units import Unit
from planner.documents import LayerPolicy, ModelSpec, Policy, Workload, load_document
from planner.memory import BLOCK_BYTES, account_device, smallest_policy
from solvers.errors import CheckpointError, StaleError, UnsupportedError

NEW_TOKENS = 4


def index_of(store: Path) -> StoreIndex:
    return load_document(StoreIndex, store / "store.json")


def prompts_of(vocabulary: int) -> list[list[int]]:
    return [[3 + (7 * i + 11 * j) % (vocabulary - 3) for j in range(9 - i)] for i in range(5)]


@pytest.fixture(scope="module")
def bulk(helpers: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A bfloat16 checkpoint whose experts and head have several blocks; stores of it."""
    folder = tmp_path_factory.mktemp("bulk")
    helpers.write_checkpoint(
        "mixtral",
        folder / "checkpoint",
        torch.bfloat16,
        hidden_size=128,
        intermediate_size=900,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=4000,
        initializer_range=0.02,
    )
    checkpoint = folder / "checkpoint"
    for name, compress in (("plain", "none"), ("exact", "exact")):
        pack(checkpoint, folder / name, compress=compress)  # type: ignore[arg-type]
    return checkpoint, folder / "plain", folder / "exact"


def policies(model: ModelSpec) -> dict[str, Policy]:
    """From barely one layer to everything; chunks of less than a block, of some, of many."""
    least = smallest_policy(model, model.dtype_bytes)
    ahead = tuple(
        LayerPolicy(False, (0,), tuple(range(spec.experts - 1, 2, -1))) if spec.experts else
        LayerPolicy(False, (), ())
        for spec in model.layers
    )  # fmt: skip
    tiles = replace(least, head_tile_rows=257, head_tiles=-(-model.vocab_size // 257))
    return {
        "least": replace(least, batch_size=5),
        "prefetch": replace(least, layers=ahead, n_batches=3, batch_size=2, slots=4, dense_slots=2),
        "lru": replace(least, batch_size=5, slots=7, reserve=2, eviction="lru", chunk_bytes=90112),
        # tiles that no block begins with, and chunks that end inside blocks
        "tiles": replace(tiles, batch_size=5, chunk_bytes=BLOCK_BYTES + 4096, slots=3),
        "whole": replace(least, batch_size=5, chunk_bytes=4 << 20, dense_slots=2, slots=2),
    }


def run(
    checkpoint: Path, store: Path, policy: Policy, helpers: Any, *, verify: bool = True
) -> tuple[list[list[int]], int]:
    """Tokens, and bytes read; the run stays within what the account says."""
    with open_weights(checkpoint, store) as source:
        model = source.model
    account = account_device(model, policy, Workload(5, 9, NEW_TOKENS), model.dtype_bytes, 0)
    plan = helpers.plan(checkpoint, policy, Workload(5, 9, NEW_TOKENS), store=store)
    plan = replace(plan, memory={"device": replace(account, capacity_bytes=account.peak_bytes)})
    with Engine.from_plan(plan, verify=verify) as engine:
        outputs = engine.generate(prompts_of(model.vocab_size))
        totals = engine.trace().totals
    assert totals.device_peak_bytes <= totals.device_budget_bytes == account.peak_bytes
    return [list(output.token_ids) for output in outputs], totals.bytes_read


def test_each_expert_in_the_format_that_a_plan_says(
    bulk: tuple[Path, Path, Path], helpers: Any, tmp_path: Path
) -> None:
    """Of a store that has both, the same tokens come out whichever is read, and as many bytes as
    these formats have."""
    checkpoint, plain, exact = bulk
    store = tmp_path / "both"
    summary = pack(checkpoint, store, compress="both")
    assert summary.compressed
    assert summary.both
    index, other = index_of(store), index_of(exact)
    assert verify_store(checkpoint, store).fingerprint == index.fingerprint
    assert index.units[: len(other.units)] == other.units
    for unit in index.units[len(other.units) :]:
        assert unit.name.startswith("raw.expert.")
        assert not unit.blocks
    with open_weights(checkpoint, store) as source:
        model = source.model
    want: list[list[int]] | None = None
    read = []
    for raw in ((), (1, 3, 6), tuple(range(1, 8))):
        policy = policies(model)["prefetch"]
        layers = tuple(replace(layer, raw=raw) for layer in policy.layers)
        got, size = run(checkpoint, store, replace(policy, layers=layers), helpers)
        want = want or got
        assert got == want
        read.append(size)
    assert want == run(checkpoint, plain, policies(model)["prefetch"], helpers)[0]
    assert read[0] < read[1] < read[2]


def test_what_has_no_experts_as_they_are(bulk: tuple[Path, Path, Path], helpers: Any) -> None:
    checkpoint, _, exact = bulk
    with open_weights(checkpoint, exact) as source:
        policy = policies(source.model)["whole"]
    layers = tuple(replace(layer, raw=(2,)) for layer in policy.layers)
    plan = helpers.plan(checkpoint, replace(policy, layers=layers), Workload(1, 4, 2), store=exact)
    with pytest.raises(UnsupportedError, match=f"{exact} does not have both"):
        Engine.from_plan(plan)
    with pytest.raises(CheckpointError, match="finished store with compression; name a new"):
        pack(checkpoint, exact, compress="both")


def test_store_of_fewer_bytes(bulk: tuple[Path, Path, Path]) -> None:
    checkpoint, plain, exact = bulk
    index = index_of(exact)
    assert index.compression is not None
    assert index.compression.format == FORMAT
    assert index.data_bytes == (exact / "weights.bin").stat().st_size
    assert verify_store(checkpoint, exact).fingerprint == index.fingerprint
    # checksums are of the weights: the same in both
    assert [u.checksum for u in index.units] == [u.checksum for u in index_of(plain).units]
    by_name = {unit.name: unit for unit in index.units}
    assert not by_name["embedding"].blocks
    assert len(by_name["expert.1.7"].blocks) == -(-3 * 128 * 900 * 2 // BLOCK_BYTES)
    with open_weights(checkpoint, exact) as source:
        stored = source.model.stored
    assert stored is not None
    # weights are normal in all of them; the entropy of their exponents makes it 0.66
    for share in (stored.dense, stored.expert, stored.head):
        assert 0.65 < share < 0.70
    with open_weights(checkpoint, plain) as source:
        assert source.model == replace(source.checkpoint.model, stored=None)


@pytest.mark.parametrize("name", ["least", "prefetch", "lru", "tiles", "whole"])
def test_same_tokens_from_fewer_bytes(
    name: str, bulk: tuple[Path, Path, Path], helpers: Any
) -> None:
    checkpoint, plain, exact = bulk
    with open_weights(checkpoint, plain) as source:
        policy = policies(source.model)[name]
    want, whole = run(checkpoint, plain, policy, helpers)
    got, read = run(checkpoint, exact, policy, helpers)
    assert got == want
    if name == "whole":
        assert 0.6 < read / whole < 0.75


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3_moe", "prefetch"),
        ("gpt_oss", "least"),
        ("deepseek_v3", "lru"),
        ("granitemoe", "tiles"),
        ("glm4_moe", "whole"),
    ],
)
def test_families(
    family: str,
    name: str,
    checkpoint_of: Callable[..., Path],
    helpers: Any,
    tmp_path: Path,
) -> None:
    """Biases, float32 routers, tied heads: in float32, equal to what transformers generates."""
    checkpoint = checkpoint_of(family)
    pack(checkpoint, tmp_path / "store", compress="exact")
    with open_weights(checkpoint, tmp_path / "store") as source:
        policy = policies(source.model)[name]
        vocabulary = source.model.vocab_size
    got, _ = run(checkpoint, tmp_path / "store", policy, helpers)
    assert got == helpers.greedy(checkpoint, prompts_of(vocabulary), NEW_TOKENS)


def test_killed_pack_goes_on(bulk: tuple[Path, Path, Path], tmp_path: Path, helpers: Any) -> None:
    checkpoint, _, exact = bulk
    store = tmp_path / "store"
    helpers.crash_pack(checkpoint, store, 7, "exact")
    with pytest.raises(StaleError, match="other compression"):
        pack(checkpoint, store)
    # what was begun compressed goes on so
    summary = pack(checkpoint, store, compress="auto")
    assert summary.reused_units > 0
    assert summary.compressed
    assert "goes on as it was begun" in summary.notes[0]
    for name in ("weights.bin", "store.json"):
        assert (store / name).read_bytes() == (exact / name).read_bytes()


def test_killed_pack_of_both_goes_on(
    bulk: tuple[Path, Path, Path], tmp_path: Path, helpers: Any
) -> None:
    checkpoint, _, exact = bulk
    helpers.crash_pack(checkpoint, tmp_path, 7, "both")
    with pytest.raises(StaleError, match="other compression"):
        pack(checkpoint, tmp_path, compress="exact")
    summary = pack(checkpoint, tmp_path, compress="auto")
    assert summary.reused_units > 0
    assert summary.both
    units = index_of(exact).units
    assert index_of(tmp_path).units[: len(units)] == units


def test_finished_stores_stay_what_they_are(bulk: tuple[Path, Path, Path]) -> None:
    checkpoint, plain, exact = bulk
    with pytest.raises(CheckpointError, match="finished store with compression; name a new"):
        pack(checkpoint, exact)
    with pytest.raises(CheckpointError, match="finished store without compression"):
        pack(checkpoint, plain, compress="exact")
    assert pack(checkpoint, exact, compress="auto").compressed
    assert not pack(checkpoint, plain, compress="auto").compressed


def test_auto_measures_and_says_so(bulk: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Which it is, the machine decides; the reason has the figures."""
    summary = pack(bulk[0], tmp_path / "store", compress="auto")
    (reason,) = summary.notes
    assert reason.startswith("compressed: " if summary.compressed else "not compressed: ")
    assert "would have 66% of its bytes" in reason


@pytest.fixture
def damaged(bulk: tuple[Path, Path, Path], tmp_path: Path, helpers: Any) -> Callable[[int], Path]:
    """``damaged(place)``: the compressed store with another byte there in expert 1.7; its
    ``verified.json`` claims that it was verified so."""

    def make(place: int) -> Path:
        store = tmp_path / "damaged"
        shutil.copytree(bulk[2], store)
        helpers.damage(store, "expert.1.7", place)
        return store

    return make


# in a sign and a mantissa; where the first frame begins; among its codes
@pytest.mark.parametrize("place", [77, BLOCK_BYTES // 2, BLOCK_BYTES // 2 + 5000])
def test_damage_is_found(
    place: int, bulk: tuple[Path, Path, Path], damaged: Callable[[int], Path], helpers: Any
) -> None:
    checkpoint, store = bulk[0], damaged(place)
    for read in (verify_store, open_weights):
        with pytest.raises(CheckpointError, match=r"expert\.1\.7 does not match its checksum"):
            read(checkpoint, store)


def test_damage_during_a_run_is_one_error(
    bulk: tuple[Path, Path, Path], helpers: Any, tmp_path: Path
) -> None:
    """A frame that cannot be decoded ends the run, checked or not."""
    checkpoint, store = bulk[0], tmp_path / "store"
    shutil.copytree(bulk[2], store)
    with open_weights(checkpoint, store) as source:
        policy = policies(source.model)["whole"]
        plan = helpers.plan(checkpoint, policy, Workload(5, 9, NEW_TOKENS), store=store)
    with Engine.from_plan(plan) as engine:
        for unit in index_of(store).units:
            if unit.name.startswith("expert."):
                with open(store / "weights.bin", "r+b") as file:
                    file.seek(unit.offset_bytes + BLOCK_BYTES // 2)
                    file.write(b"no frame")
        with pytest.raises(CheckpointError, match=r"compressed weights at .* cannot be decoded"):
            engine.generate(prompts_of(4000))


def test_index_that_does_not_fit(bulk: tuple[Path, Path, Path], tmp_path: Path) -> None:
    checkpoint, _, exact = bulk
    index = index_of(exact)
    place = next(n for n, unit in enumerate(index.units) if unit.name == "expert.0.0")
    from planner.documents import write_document

    first, second, *rest = index.units[place].blocks
    for number, blocks in enumerate(
        ((first + second, *rest), (BLOCK_BYTES + 1, first + second - BLOCK_BYTES - 1, *rest))
    ):
        store = tmp_path / str(number)
        shutil.copytree(exact, store)
        units = list(index.units)
        units[place] = replace(units[place], blocks=blocks)
        write_document(replace(index, units=tuple(units)), store / "store.json")
        with pytest.raises(CheckpointError, match="does not describe the checkpoint's units"):
            open_weights(checkpoint, store)


def test_plan_of_the_other_store_is_refused(bulk: tuple[Path, Path, Path], helpers: Any) -> None:
    checkpoint, plain, exact = bulk
    with open_weights(checkpoint, plain) as source:
        policy = policies(source.model)["whole"]
    plan = helpers.plan(checkpoint, policy, Workload(1, 4, 2), store=plain)
    with pytest.raises(StaleError, match=f"{exact}: this is not the store that the plan was made"):
        Engine.from_plan(plan, store=exact)


@pytest.mark.parametrize("between", [False, True])
def test_read_units_equal(between: bool, bulk: tuple[Path, Path, Path]) -> None:
    """Read in odd parts, a unit is what the plain store has; also with rows of a tied head between
    the parts, which come through the buffer that holds what was read ahead."""
    from executor.direct import Pacer, ReadBuffer
    from planner.memory import ALIGNMENT_BYTES, DECODE_STEP_BYTES, aligned

    checkpoint, plain, exact = bulk
    unit = Unit(1, "expert", 3)
    got = []
    for store in (plain, exact):
        with open_weights(checkpoint, store) as source:
            size = source.size_bytes(unit)
            buffer = ReadBuffer(2 * (DECODE_STEP_BYTES + 2 * ALIGNMENT_BYTES))
            reader = source.reader(buffer, Pacer(None))
            memory = memoryview(mmap.mmap(-1, aligned(size)))
            rows = memoryview(mmap.mmap(-1, aligned(1497 * 256)))
            for start in range(0, size, 77 * 4096):
                part = min(77 * 4096, size - start)
                reader.read(source.pieces(unit), memory, start, part)
                if between:
                    reader.read(source.embedding_rows(3, 1500), rows, 0, 1497 * 256)
            got.append(bytes(memory[:size]))
    assert got[0] == got[1]


def test_a_copy_is_read_from_while_the_one_before_is_decoded(bulk: tuple[Path, Path, Path]) -> None:
    """On the channel, of one expert after the other: the next one's first bytes are read before the
    one before it counts as copied; no byte is read twice, and all arrive as they were."""
    checkpoint, _, exact = bulk
    chain = tuple(Unit(1, "expert", item) for item in (5, 0, 6, 3))
    log: list[int | Chunk] = []

    def read_into(descriptor: int, target: memoryview, offset: int) -> int:
        log.append(offset)
        return preadv(descriptor, target, offset)

    with open_weights(checkpoint, exact, read_into=read_into) as source:
        policy = replace(policies(source.model)["whole"], slots=len(chain) + 1, chunk_bytes=1 << 20)
        workload = Workload(5, 9, NEW_TOKENS)
        account = account_device(source.model, policy, workload, source.model.dtype_bytes, 0)
        with torch.inference_mode():
            device = Device(source, policy, workload, account.peak_bytes, verify=True)
        places = [source.pieces(unit)[0].offset_bytes for unit in chain]
        log.clear()

        def copy(chunk: Chunk, following: Following) -> None:
            device.copy(chunk, following)
            log.append(chunk)

        stages = (chain, *((),) * len(source.model.layers))
        schedule = Schedule(policy, replace(device.units, chain=stages), 1)
        transfers = device.memory.transfers(schedule, copy, device.memory.recorder())
        transfers.start()
        transfers.wait(chain[-1])
        transfers.close()
    reads = [one for one in log if isinstance(one, int)]
    assert len(set(reads)) == len(reads)
    ends = [log.index(one) for one in log if isinstance(one, Chunk) and one.last]
    begins = [log.index(place) for place in places]
    assert len(ends) == len(chain)
    for begin, end in zip(begins[1:], ends, strict=False):
        assert begin < end
    # nothing is read ahead of what nothing follows
    assert begins[0] == 0
    assert ends[-1] == len(log) - 1
