"""What prompts and numbers of new tokens are refused for, before anything is loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from executor.prompts import check_limit, check_stop, encode
from planner.documents import Workload
from solvers.errors import OptionError

WORKLOAD = Workload(requests=2, prompt_tokens=4, new_tokens=3)
MODEL: Any = SimpleNamespace(vocab_size=10, max_context=100)


def no_tokenizer() -> Any:
    pytest.fail("no text is among them")


def ids(prompts: Any) -> list[list[int]]:
    return encode(prompts, WORKLOAD, MODEL, no_tokenizer)


def test_whole_numbers_of_any_library_are_taken() -> None:
    assert ids([[1, 2], np.array([3, 4])]) == [[1, 2], [3, 4]]
    assert check_limit(WORKLOAD, None) == 3
    assert check_limit(WORKLOAD, np.int64(2)) == 2  # type: ignore[arg-type]
    assert check_limit(WORKLOAD, (1, 3), 2) == [1, 3]
    assert check_limit(WORKLOAD, np.array([1, 3]), 2) == [1, 3]  # type: ignore[arg-type]
    assert check_limit(WORKLOAD, np.array(2)) == 2  # type: ignore[arg-type]
    stop: Any = np.array([3, 4])
    assert check_stop(stop, 10, no_tokenizer) == (frozenset({3, 4}), ())


WANTED = "give a list of texts and token ids"
WHOLE = "is given as a number of new tokens: give a whole number"


@pytest.mark.parametrize("stop", [np.array(3), b"ab", bytearray(b"a"), memoryview(b"a"), {"a": 1}])
def test_what_lists_no_stops_is_refused(stop: Any) -> None:
    with pytest.raises(OptionError, match=WANTED):
        check_stop(stop, 200, no_tokenizer)


@pytest.mark.parametrize("limit", [{1, 2}, b"\1\2", {1: 2, 2: 1}])
def test_numbers_of_new_tokens_in_no_order_are_refused(limit: Any) -> None:
    with pytest.raises(OptionError, match=WHOLE):
        check_limit(WORKLOAD, limit, 2)


def test_bytes_seen_through_a_view_are_no_token_ids() -> None:
    with pytest.raises(OptionError, match="give a list of texts or of lists of token ids"):
        ids([memoryview(b"\1\2")])


def test_a_table_is_said_on_one_line() -> None:
    table = np.array([[1, 2], [3, 4]])
    with pytest.raises(OptionError, match=r"^array\(\[\[1, 2\], \[3, 4\]\]\) is given as a stop"):
        check_stop([table], 10, no_tokenizer)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([], "0 prompts are given; the plan is for 1 to 2: give one at least"),
        ([[1], [2], [3]], "3 prompts are given; the plan is for 1 to 2: plan again with --req"),
        ([[1], [1.5]], "1.5 is given as a token id of prompt 2: give a whole number"),
        ([["7"]], "'7' is given as a token id of prompt 1: give a whole number"),
        ([[None]], "None is given as a token id of prompt 1: give a whole number"),
        # the ids of one prompt, where a list of prompts is wanted
        ([1, 2], "prompt 1 is 1: give a list of texts or of lists of token ids"),
        ([[1], None], "prompt 2 is None: give a list of texts or of lists of token ids"),
        ([b"ab"], "prompt 1 is b'ab': give a list of texts or of lists of token ids"),
        ([[1], {2: 3}], "prompt 2 is {2: 3}: give a list of texts or of lists of token ids"),
        ([np.array(3)], "prompt 1 is array(3): give a list of texts or of lists of token ids"),
        (3, "prompts is 3: give a list of texts or of lists of token ids"),
        (None, "prompts is None: give a list of texts or of lists of token ids"),
        (b"ab", "prompts is b'ab': give a list of texts or of lists of token ids"),
        ({"a": 1}, "prompts is {'a': 1}: give a list of texts or of lists of token ids"),
        (np.array(3), "prompts is array(3): give a list of texts or of lists of token ids"),
        (iter([[1]]), "prompts is <list_iterator object"),
        ("a", "prompts is one text; give a list of prompts"),
    ],
)
def test_bad_prompts_are_one_line_that_helps(prompts: Any, words: str) -> None:
    with pytest.raises(OptionError) as error:
        ids(prompts)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (0, "0 new tokens are asked for; the plan allows 1 to 3: ask for one at least"),
        ([3, -1], "-1 new tokens are asked for; the plan allows 1 to 3: ask for one at least"),
        (4, "4 new tokens are asked for; the plan allows 1 to 3: plan again with --new-tokens 4"),
        (1.5, "1.5 is given as a number of new tokens: give a whole number"),
        ([1, "2"], "'2' is given as a number of new tokens: give a whole number"),
    ],
)
def test_bad_numbers_of_new_tokens_are_one_line_that_helps(limit: Any, words: str) -> None:
    with pytest.raises(OptionError) as error:
        check_limit(WORKLOAD, limit, 2)
    assert str(error.value) == words


def test_half_a_surrogate_pair_is_no_text() -> None:
    tokenizer: Any = SimpleNamespace(longest=9)
    with pytest.raises(OptionError, match="prompt 2 holds half a surrogate pair"):
        encode([[1], "a\ud800"], WORKLOAD, MODEL, lambda: tokenizer)


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (3, "stop is 3: give a list of texts and token ids"),
        ([1.5], "1.5 is given as a stop token: give a whole number"),
        ([None], "None is given as a stop token: give a whole number"),
    ],
)
def test_bad_stops_are_one_line_that_helps(stop: Any, words: str) -> None:
    with pytest.raises(OptionError) as error:
        check_stop(stop, MODEL.vocab_size, no_tokenizer)
    assert str(error.value) == words
