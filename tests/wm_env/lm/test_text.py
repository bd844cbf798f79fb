import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_lm import ALL_BYTES, tokenizer_of
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from wm_env.lm.text import is_text, prefix_pairs, text_tokenizer, token_bytes

BYTE_TOKENIZER = tokenizer_of((*ALL_BYTES, b" the", "é".encode()), ((b"\xc3", b"\xa9"),))


def test_token_bytes_of_every_byte_and_of_merged_tokens():
    vocabulary = token_bytes(BYTE_TOKENIZER)
    assert vocabulary == {**{value: bytes([value]) for value in range(256)}, 256: b" the", 257: b"\xc3\xa9"}


@given(st.text())
def test_bytes_of_the_ids_are_the_text(text):
    vocabulary = token_bytes(BYTE_TOKENIZER)
    ids = BYTE_TOKENIZER(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert b"".join(vocabulary[token] for token in ids) == text.encode()


def test_words_of_a_word_piece_vocabulary_bring_their_space():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1, "##re": 2, ",": 3, "é": 4}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[UNK]"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert token_bytes(tokenizer) == {1: b" the", 2: b"re", 3: b" ,", 4: " é".encode()}
    assert not text_tokenizer(tokenizer).is_byte_level
    assert text_tokenizer(BYTE_TOKENIZER).is_byte_level


def test_other_tokenizers_are_refused():
    tokenizer = Tokenizer(models.Unigram([("▁the", -1.0), ("re", -2.0)]))
    tokenizer.decoder = decoders.Metaspace()
    with pytest.raises(ValueError, match=r"Metaspace.*byte-level"):
        token_bytes(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


@given(st.text(min_size=1))
def test_whole_characters_are_text_and_a_cut_one_is_not(text):
    data = text.encode()
    assert is_text(data)
    last = text[-1].encode()
    assert is_text(data[:-1]) == (len(last) == 1)
    assert is_text(data[len(text[0].encode()) - 1 :]) == (len(text[0].encode()) == 1)


@given(st.lists(st.text(alphabet="ab", max_size=4).map(str.encode)))
def test_prefix_pairs_counts_every_pair(texts):
    different = set(texts)
    expected = sum(first != second and second.startswith(first) for first in different for second in different)
    assert prefix_pairs(texts) == expected
