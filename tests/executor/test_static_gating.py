"""Static gating against dynamic gating and against cases worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor import open_weights
from executor.device import Device
from executor.static_gating import (
    dispatch,
    dispatch_bytes,
    expert_capacity,
    static_experts,
    waste_factor,
)
from executor.units import Unit
from planner.documents import Workload
from planner.memory import account_device
from solvers.errors import OptionError

TOKENS = 24


@pytest.fixture(scope="module", params=["mixtral", "gpt_oss"])
def device(request: pytest.FixtureRequest, checkpoint_of: Any, helpers: Any) -> Iterator[Device]:
    """A whole model in memory and a pass of some tokens begun; gpt-oss has experts' biases, which
    padding rows must not add anywhere."""
    with open_weights(checkpoint_of(request.param)) as source, torch.inference_mode():
        policy = helpers.resident(source.model, n_batches=1, batch_size=TOKENS)
        workload = Workload(TOKENS, 1, 1)
        budget = account_device(source.model, policy, workload, 4, 0).peak_bytes
        device = Device(source, policy, workload, budget)
        device.operations.begin([1] * TOKENS, [0] * TOKENS)
        draw = torch.Generator().manual_seed(3)
        # all tokens lie to one side, so that some experts get more of them
        rows = torch.randn(TOKENS, source.model.hidden_size, generator=draw)
        device.state.normed.copy_(rows + 2 * torch.randn(rows.shape[1], generator=draw))
        yield device


def of_layer(device: Device, layer: int) -> list[Any]:
    experts = range(device.source.model.layers[layer].experts)
    return [device.expert(Unit(layer, "expert", expert), None) for expert in experts]


@pytest.mark.parametrize("layer", [0, 2])
def test_with_room_for_all_it_is_dynamic_gating(device: Device, layer: int) -> None:
    with torch.inference_mode():
        counts = device.operations.router(layer)
        experts = of_layer(device, layer)
        for expert, own in enumerate(experts):
            device.operations.expert(expert, own)
        wanted = device.state.sums.clone()
        assert max(counts) > 1.4 * sum(counts) / len(counts)
        weights = device.operations.choose(layer)
        for capacity in (max(counts), max(counts) + 1, TOKENS):
            sums = torch.zeros_like(wanted)
            rows, chosen = device.state.normed, device.operations.chosen
            dropped = static_experts(device.adapter, rows, chosen, weights, experts, capacity, sums)
            assert dropped == 0
            torch.testing.assert_close(sums, wanted, rtol=1e-5, atol=1e-5)


def test_with_less_room_the_fullest_experts_last_tokens_are_dropped(device: Device) -> None:
    with torch.inference_mode():
        counts = device.operations.router(0)
        weights, chosen = device.operations.choose(0), device.operations.chosen
        sums = torch.zeros_like(device.state.sums)
        capacity = max(counts) - 1
        dropped = static_experts(
            device.adapter,
            device.state.normed,
            chosen,
            weights,
            of_layer(device, 0),
            capacity,
            sums,
        )
        assert dropped == sum(max(count - capacity, 0) for count in counts) > 0


def test_rows_are_dealt_as_worked_out_by_hand() -> None:
    # 4 tokens, 3 experts, 2 rows each. First choices, 0 0 0 1: token 2 finds expert 0 full. Second
    # ones, 1 1 2 0: token 0 takes expert 1's second row, token 1 finds it full, token 2 takes
    # expert 2's first, token 3 finds expert 0 full.
    chosen = torch.tensor([[0, 1], [0, 1], [0, 2], [1, 0]])
    weights = torch.tensor([[0.6, 0.4], [0.7, 0.3], [0.8, 0.2], [0.9, 0.1]])
    dealt = dispatch(chosen, weights, 3, 2, torch.bfloat16)
    taken = {(0, 0, 0): 0.6, (1, 0, 1): 0.7, (3, 1, 0): 0.9, (0, 1, 1): 0.4, (2, 2, 0): 0.2}
    found = {
        tuple(place): dealt.combine[tuple(place)].item() for place in dealt.mask.nonzero().tolist()
    }
    assert found == pytest.approx(taken)
    assert dealt.combine.count_nonzero() == len(taken)
    assert dealt.dropped == 8 - len(taken)
    # 4 x 3 x 2 places: 24 x 2 bytes of the mask and 24 x 4 of the weights
    assert dealt.mask.nbytes + dealt.combine.nbytes == 48 + 96 == dispatch_bytes(4, 3, 2, 2)


@given(st.data())
def test_dropped_is_what_exceeds_the_capacity(data: st.DataObject) -> None:
    experts = data.draw(st.integers(1, 5))
    top_k = data.draw(st.integers(1, experts))
    one = st.permutations(range(experts)).map(lambda order: order[:top_k])
    chosen = torch.tensor(data.draw(st.lists(one, min_size=1, max_size=8)))
    capacity = data.draw(st.integers(1, 9))
    dealt = dispatch(chosen, torch.ones(chosen.shape), experts, capacity, torch.float32)
    counts = torch.bincount(chosen.reshape(-1), minlength=experts)
    assert dealt.dropped == int((counts - capacity).clamp(min=0).sum())
    # a row has one token at most, and experts use their first rows
    filled = dealt.mask.sum(0)
    assert filled.max() <= 1
    assert torch.equal(filled, (torch.arange(capacity) < counts[:, None]).float())
    assert torch.equal(dealt.mask, dealt.combine)


def test_capacity_and_waste() -> None:
    # 16 tokens, 2 of 8 experts each: a share of 4 rows; 1.3 x 4 = 5.2, and never more than 16
    assert [expert_capacity(16, 2, 8, factor) for factor in (1, 1.3, 100)] == [4, 6, 16]
    assert expert_capacity(1, 1, 128, 1.0) == 1
    # 512 experts, 2 of them each, room for 5% of 2,000 tokens; 128 with room for all
    assert waste_factor(100, 2000, 2, 512) == 12.8
    assert waste_factor(2000, 2000, 2, 128) == 64
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="is not a positive number"):
            expert_capacity(16, 2, 8, factor)
