"""Tokens as they come, what stops a sequence, and runs that end before their end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from executor import Engine, Sampling, open_weights
from executor.texts import TextStream
from executor.tokenizer import load_tokenizer
from planner.documents import Plan, Workload
from planner.memory import smallest_policy
from solvers.errors import CancelledError, CheckpointError, OptionError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pycode-moe"
TEXTS = ["def main():\n", "class Stack:\n    def __init__(self", "import os\n", "x = ["]
NEW_TOKENS = 10


@pytest.fixture(scope="module")
def plan(helpers: Any) -> Plan:
    """Two of the four at a time."""
    with open_weights(EXAMPLE) as source:
        policy = helpers.resident(source.model, batch_size=2)
    made: Plan = helpers.plan(EXAMPLE, policy, Workload(4, 16, NEW_TOKENS))
    return made


@pytest.fixture
def engine(plan: Plan) -> Iterator[Engine]:
    with Engine.from_plan(plan) as made:
        yield made


@pytest.mark.parametrize("sampling", [None, Sampling(1.5, seed=4)])
def test_pieces_are_the_outputs(engine: Engine, sampling: Sampling | None) -> None:
    limits = [3, NEW_TOKENS, 5, NEW_TOKENS]
    whole = engine.generate(TEXTS, limits, sampling=sampling)
    assert engine.outputs == whole
    pieces = list(engine.stream(TEXTS, limits, sampling=sampling))
    assert engine.outputs == whole
    for number, output in enumerate(whole):
        own = [piece for piece in pieces if piece.request == number]
        assert tuple(piece.token_id for piece in own) == output.token_ids
        assert "".join(piece.text for piece in own) == output.text
        assert output.finished
    # they come as they are made: the first pass has one of each sequence of the group
    assert [piece.request for piece in pieces[:4]] == [0, 1, 0, 1]


def test_closing_ends_the_run(engine: Engine) -> None:
    whole = engine.generate(TEXTS)
    pieces = engine.stream(TEXTS, [2, NEW_TOKENS, NEW_TOKENS, NEW_TOKENS])
    for _ in range(5):
        next(pieces)
    assert isinstance(pieces, Iterator)
    with pytest.raises(OptionError, match="at work"):
        engine.generate(TEXTS)
    pieces.close()  # type: ignore[attr-defined]
    assert not any(thread.name == "moeplan-reader" for thread in threading.enumerate())
    assert [output.finished for output in engine.outputs] == [True, False, False, False]
    assert [len(output.token_ids) for output in engine.outputs] == [2, 3, 1, 0]
    for have, want in zip(engine.outputs, whole, strict=True):
        assert want.token_ids[: len(have.token_ids)] == have.token_ids
    assert engine.trace().totals.passes == 3
    assert engine.generate(TEXTS) == whole


def test_nothing_runs_in_inference_mode_for_the_caller(engine: Engine) -> None:
    for _ in engine.stream(TEXTS[:1], 3):
        assert not torch.is_inference_mode_enabled()


def test_cancel_from_another_thread(engine: Engine) -> None:
    engine.cancel()  # nothing goes on: no effect
    whole = engine.generate(TEXTS)
    caught: list[Exception] = []

    def progress(done: int, _: int) -> None:
        if done >= 4:
            canceller = threading.Thread(target=engine.cancel)
            canceller.start()
            canceller.join()

    def work() -> None:
        try:
            engine.generate(TEXTS, progress=progress)
        except CancelledError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert [str(error) for error in caught] == ["the run was cancelled"]
    assert [len(output.token_ids) for output in engine.outputs] == [2, 2, 0, 0]
    assert engine.generate(TEXTS) == whole


def test_cancel_between_two_pieces(engine: Engine) -> None:
    pieces = engine.stream(TEXTS)
    next(pieces), next(pieces)
    engine.cancel()
    with pytest.raises(CancelledError):
        next(pieces)
    assert next(pieces, None) is None


# --- what stops -----------------------------------------------------------------------------------


def stopped_by_transformers(helpers: Any, **options: Any) -> list[list[int]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(EXAMPLE)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    found: list[list[int]] = helpers.greedy(
        EXAMPLE, prompts, NEW_TOKENS, tokenizer=tokenizer, **options
    )
    return found


def test_stop_texts(engine: Engine, helpers: Any) -> None:
    free = engine.generate(TEXTS)
    # one from inside a token, one over two tokens
    stops = [free[0].text[3:5], free[1].text[4:9]]
    want = stopped_by_transformers(helpers, stop_strings=stops)
    assert sum(map(len, want)) < sum(len(output.token_ids) for output in free)
    outputs = engine.generate(TEXTS, stop=stops)
    assert [list(output.token_ids) for output in outputs] == want
    assert all(output.finished for output in outputs)
    assert list(engine.stream(TEXTS, stop=stops))
    assert engine.outputs == outputs


def test_stop_tokens(engine: Engine, helpers: Any) -> None:
    free = engine.generate(TEXTS)
    stops = [free[0].token_ids[4], free[2].token_ids[1]]
    # transformers' end tokens take the place of the checkpoint's own (0 here), ours come beside
    want = stopped_by_transformers(helpers, eos_token_id=[0, *stops])
    outputs = engine.generate(TEXTS, stop=stops)
    assert [list(output.token_ids) for output in outputs] == want
    assert outputs != free


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ([""], "empty text"),
        ([2048], "outside the vocabulary: 0 to 2047"),
        ([-1], "outside the vocabulary"),
        ("end", "give a list"),
    ],
)
def test_stops_refused(plan: Plan, stop: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Engine.from_plan(plan, stop=stop)


def test_stop_texts_need_a_tokenizer(checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        made = helpers.plan(checkpoint, smallest_policy(source.model, 4), Workload(1, 4, 4))
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Engine.from_plan(made, stop=["end"])
    with Engine.from_plan(made) as engine:
        pieces = list(engine.stream([[5, 6]], 2))
        assert [piece.text for piece in pieces] == ["", ""]
        with pytest.raises(OptionError, match="3 numbers of new tokens for 1 prompt"):
            engine.generate([[5, 6]], [1, 2, 3])


def test_one_text_is_no_list_of_prompts(engine: Engine) -> None:
    with pytest.raises(OptionError, match="give a list"):
        engine.generate("def main")


# --- text of tokens -------------------------------------------------------------------------------


load_example = cache(lambda: load_tokenizer(EXAMPLE))


@cache
def words_with_blanks() -> Callable[[list[int]], str]:
    """As sentencepiece models have it: a blank before each word, dropped at the start; single bytes
    for what is in no word."""
    vocabulary: dict[str, int] = {"<unk>": 0, "</s>": 1}
    for token in ("▁the", "▁cat", "s", "▁", ".", "▁▁", "ö"):
        vocabulary[token] = len(vocabulary)
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    )
    decoders = tokenizers.decoders
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["</s>"])
    return made.decode


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 2047), max_size=24))
def test_pieces_together_are_the_text(ids: list[int]) -> None:
    """Whatever a model says, broken characters too."""
    decode = load_example().decode
    stream, pieces = TextStream(decode), []
    for token in ids:
        stream.push(token)
        pieces.append(stream.take())
        assert not pieces[-1].endswith("\ufffd")
    assert "".join(pieces) + stream.finish() == decode(ids)


@settings(max_examples=100, deadline=None)
@given(items=st.lists(st.integers(0, 8) | st.sampled_from("é→日🎉"), max_size=12))
def test_blanks_before_words_and_single_bytes(items: list[int | str]) -> None:
    decode, ids = words_with_blanks(), []
    for item in items:
        ids += [item] if isinstance(item, int) else [9 + byte for byte in item.encode()]
    stream = TextStream(decode)
    for token in ids:
        stream.push(token)
    assert stream.take() + stream.finish() == decode(ids)


def test_a_character_of_several_tokens_comes_whole() -> None:
    tokenizer = load_example()
    text = "naïve → 日本 🎉!"
    stream, pieces = TextStream(tokenizer.decode), []
    for token in tokenizer.encode(text):
        stream.push(token)
        pieces.append(stream.take())
    assert "" in pieces, "every character is one token: the test shows nothing"
    assert "".join(pieces) == text
    assert stream.finish() == ""


def test_half_a_character_at_the_end() -> None:
    tokenizer = load_example()
    ids = tokenizer.encode("a🎉")[:-1]
    stream = TextStream(tokenizer.decode)
    for token in ids:
        stream.push(token)
    assert stream.take() == "a"
    assert stream.finish() == tokenizer.decode(ids)[1:] != ""
    assert stream.finish() == ""


def test_a_stop_over_several_pieces() -> None:
    letters = "ab cd"
    stream = TextStream(lambda ids: "".join(letters[one] for one in ids), ["b c", "never"])
    seen = []
    for token in range(len(letters)):
        stream.push(token)
        seen.append(stream.stopped)
    assert seen == [False, False, False, True, True]


def cancelled(engine: Engine) -> None:
    with pytest.raises(CancelledError):
        engine.generate(TEXTS, NEW_TOKENS, lambda *_: engine.cancel())


def closed(engine: Engine) -> None:
    pieces = engine.stream(TEXTS, NEW_TOKENS, stop=["("])
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "ask",
    [
        lambda engine: engine.generate(TEXTS, 3, sampling=Sampling(1.5, seed=4)),
        closed,
        cancelled,
    ],
    ids=["ended", "closed", "cancelled"],
)
def test_a_run_is_freed_when_the_next_begins(
    ask: Callable[[Engine], object], engine: Engine
) -> None:
    """Reference counts free a run's events: nothing of it waits for a collection."""
    engine.generate(TEXTS, 2)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        ask(engine)
        engine.generate(TEXTS, 2)
        gc.collect()
        left = {type(one) for one in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not [one for one in left if one.__module__.startswith(("executor", "planner"))]
