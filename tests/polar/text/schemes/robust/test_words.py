import numpy as np
import pytest
from word_texts import letters, mini_tokenizer

from polar.text.schemes.robust.tape import CHECKS, PILOTS, SEGMENT, SLOTS, levels, nonces_of
from polar.text.schemes.robust.words import split_text

TEXT = "The mayor's 3 dogs, unquestionably\n\nhappy ones, 世界 ran."


def places(text):
    split = split_text(mini_tokenizer().encode(text), letters())
    return split, list(zip((split.word - split.opens).tolist(), split.slot.tolist(), strict=True))


def test_words_begin_where_white_space_ends():
    split, _ = places("The mayor saw  two dogs\n\nand ran")
    tokens = np.array(mini_tokenizer().encode("The mayor saw  two dogs\n\nand ran"))
    words = ["".join(letters()[token] for token in tokens[split.word == word]).strip() for word in range(split.words)]
    assert words == ["The", "mayor", "saw", "two", "dogs", "and", "ran"]


def test_no_two_tokens_have_the_same_place():
    split, found = places(TEXT * 3)
    assert len(set(found[1:])) == len(found) - 1
    assert split.word[0] == 0
    assert split.opens[0]


def test_a_longer_word_moves_the_next_token_only():
    one, other = (
        set(zip(places(text)[1], mini_tokenizer().encode(text), strict=True))
        for text in ("We saw dogs in the old town", "We saw unquestionably in the old town")
    )
    # "We", " saw", " the", " old", " town" stay; " in" opens a word behind the changed one.
    assert len(one & other) == 5


def test_a_word_without_end_goes_on_as_the_next():
    split, found = places("x" + "-q" * 40)
    assert split.slot.max() == SLOTS - 1
    assert len(set(found)) == len(found)


def test_tokens_as_words():
    ids = mini_tokenizer().encode(TEXT)
    split = split_text(ids, letters(), by_token=True)
    assert split.word.tolist() == list(range(len(ids)))
    assert not split.slot.any()
    assert not split.opens.any()


def test_the_empty_text_has_no_words():
    assert split_text([], letters()).words == 0


@pytest.mark.parametrize("payload_bits", [1, 8, 32, 256])
def test_levels_are_spread_evenly(payload_bits):
    level = levels(payload_bits)
    assert set(level.reshape(-1).tolist()) >= {0, 1, payload_bits, payload_bits + 1}
    for part in (level[:, :2], level[200:300, :2]):
        assert (part == 0).mean() == pytest.approx(PILOTS, abs=0.02)
        assert (part == payload_bits + 1).mean() == pytest.approx(CHECKS, abs=0.02)


def test_nonces_of_a_text():
    assert nonces_of(3, 0) == range(3, 4)
    assert nonces_of(3, SEGMENT) == range(3, 4)
    assert nonces_of(3, SEGMENT + 1) == range(3, 5)
