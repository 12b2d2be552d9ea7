"""Statistics of the data folder, read by ``load_source`` and counted again by hand.

What is expected is computed here from the raw files with plain Python or one line of numpy, which
shares nothing with the code that is tested.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.drawn_routing import draw_routing
from planner.model_spec import read_model
from planner.routing import coactivation, popularity
from planner.routing_sources import load_source
from solvers.errors import DocumentError, OptionError

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("MOEPLAN_SHARED_DATA", ROOT.parent / "shared" / "data"))


def raw(name: str) -> Path:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"the data folder is not there: {path} (MOEPLAN_SHARED_DATA)")
    return path


def coverage(counts: list[float], most: int) -> float:
    """Share of all choices that the most popular ``most`` experts take."""
    return sum(sorted(counts, reverse=True)[:most]) / sum(counts)


def test_heat_of_qwen3_adds_up_and_covers() -> None:
    path = raw("routing/mbolt_coactivation_qwen3-30b-a3b.json")
    body = json.loads(path.read_text())
    source = load_source(path)
    assert (source.kind, source.top_k, source.experts) == ("heat", 8, 128)
    assert source.layers == tuple(range(48))
    read = source.heat["all"]
    for index, layer in enumerate(body["layers"]):
        assert read[index].tolist() == layer["heat"]
        # each of 75,773 tokens chose eight
        assert sum(layer["heat"]) == 8 * body["n_decode_tokens"] == 606_184
        for most in (8, 32, 64):
            mine = np.sort(read[index])[::-1][:most].sum() / read[index].sum()
            assert mine == pytest.approx(coverage(layer["heat"], most))


def test_a_trace_drawn_from_heat_covers_as_the_heat_does() -> None:
    path = raw("routing/mbolt_coactivation_qwen3-30b-a3b.json")
    model = read_model(raw("configs/Qwen3-30B-A3B.json"))
    body = json.loads(path.read_text())
    drawn = draw_routing(str(path), model, prompt_tokens=64, seed=0)
    shares = popularity(drawn.arrays, 128)
    for index in (0, 20, 47):
        heat = body["layers"][index]["heat"]
        for most in (8, 32, 64):
            hottest = sorted(range(128), key=lambda expert: -heat[expert])[:most]
            # five standard deviations of a share of 5,120 tokens x 8 choices, and more
            assert shares[index, hottest].sum() == pytest.approx(coverage(heat, most), abs=0.02)


@pytest.mark.parametrize("series", ["olmoe.expert_counts", "mistral.expert_counts"])
def test_counts_by_domain(series: str) -> None:
    path = raw("routing/olmoe_mixtral_expert_counts.json")
    body = json.loads(path.read_text())["data"][series]
    source = load_source(path, series)
    assert source.layers == (0, 7, 15)
    top_k = {"olmoe": 8, "mistral": 2}[series.partition(".")[0]]
    for domain, layers in body.items():
        assert source.heat[domain].tolist() == layers
        tokens = {sum(layer) // top_k for layer in layers}
        assert len(tokens) == 1
        assert all(sum(layer) == top_k * next(iter(tokens)) for layer in layers)


def test_shares_of_mixtral_prompts() -> None:
    path = raw("routing/mixtral_mmlu_fractions.npz")
    source = load_source(path)
    with np.load(path) as file:
        assert sum(len(file[name]) for name in file.files) == 14_042
        assert len(file.files) == len(source.domains) == 57
        for name in ("anatomy", "virology"):
            for prompt in (0, 5):
                numbers = file[name][prompt].tolist()
                mine = source.sequences[name][prompt]
                assert all(sum(layer) == pytest.approx(1, abs=1e-5) for layer in numbers)
                assert (mine / 1e6).tolist() == [
                    pytest.approx(layer, abs=1e-6) for layer in numbers
                ]


def test_a_trace_drawn_from_shares_keeps_a_prompts_own() -> None:
    path = raw("routing/mixtral_mmlu_fractions.npz")
    model = read_model(raw("configs/Mixtral-8x7B-v0.1.json"))
    drawn = draw_routing(str(path), model, prompt_tokens=512, seed=0)
    arrays = drawn.arrays
    with np.load(path) as file:
        prompts = np.concatenate([file[name] for name in file.files])
    of = arrays.experts[arrays.sequence == 3]
    seen = np.stack([np.bincount(of[:, layer].ravel(), minlength=8) for layer in range(32)])
    distance = abs(prompts - seen / seen.sum(axis=1, keepdims=True)).mean(axis=(1, 2))
    # shares of 528 tokens scatter by 0.0075 around a recorded prompt's; others are further away
    assert distance.min() < 0.009
    assert np.median(distance) > 2 * distance.min()


@pytest.mark.parametrize(
    "series", ["olmoe.expert_counts_crosslayer", "mistral.expert_counts_crosslayer_top1"]
)
def test_joint_counts_agree_with_the_counts(series: str) -> None:
    path = raw("routing/olmoe_mixtral_crosslayer.npz")
    counts = json.loads(raw("routing/olmoe_mixtral_expert_counts.json").read_text())["data"]
    source = load_source(path, series)
    assert source.kind == "joint"
    alone = counts[series.replace("_crosslayer", "")]
    total: dict[tuple[int, int, int], int] = {}
    with np.load(path) as file:
        for domain in source.domains:
            # the pairs' sums are the counts of another file, for all three layers
            assert source.heat[domain].tolist() == alone[domain]
            for pair, table in enumerate(file[f"{series}.{domain}"].tolist()):
                for e, row in enumerate(table):
                    for f, count in enumerate(row):
                        total[pair, e, f] = total.get((pair, e, f), 0) + count
    assert source.joint is not None
    assert {place: int(count) for place, count in np.ndenumerate(source.joint)} == total


def test_joint_counts_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "joint.npz"
    good = np.array([[[3, 1], [0, 2]], [[3, 0], [1, 2]]])
    np.savez(path, **{"m.a": good, "m.b": good})
    source = load_source(path)
    assert source.heat["a"].tolist() == [[4, 2], [3, 3], [4, 2]]
    assert source.joint is not None
    assert source.joint.tolist() == (2 * good).tolist()
    bad = np.array([[[3, 1], [0, 2]], [[3, 1], [1, 2]]])
    np.savez(path, **{"m.a": bad})
    with pytest.raises(DocumentError, match="do not agree"):
        load_source(path)
    np.savez(path, **{"m.a": good, "n.a": good})
    with pytest.raises(OptionError, match="give --series, one of m, n"):
        load_source(path)
    np.savez(path, **{"m.a": good[:, :1]})
    with pytest.raises(DocumentError, match="not joint counts"):
        load_source(path)


def test_statistics_of_a_trace_by_hand(small_profile: Any) -> None:
    arrays, experts = small_profile.arrays, small_profile.routing.experts
    chosen = arrays.experts.tolist()
    layer, e = 1, chosen[0][1][0]
    count = sum(token[layer].count(e) for token in chosen)
    top_k = small_profile.routing.top_k
    assert popularity(arrays, experts)[layer, e] == pytest.approx(count / len(chosen) / top_k)
    following = [token[layer + 1] for token in chosen if e in token[layer]]
    f = following[0][0]
    mine = coactivation(arrays, experts)[layer, e, f]
    assert mine == pytest.approx(sum(f in after for after in following) / len(following))
