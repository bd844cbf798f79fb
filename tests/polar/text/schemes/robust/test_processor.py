"""`CovertWatermark` in `generate` of transformers, with a small GPT-2."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from word_texts import letters, mini_tokenizer, toy_law, word_tokens, write_words

from polar.text.keys.key import Key
from polar.text.schemes.robust.processor import CovertWatermark
from polar.text.schemes.robust.reader import Receiver
from polar.text.schemes.robust.sampling import truncated
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.schemes.robust.writer import Writer
from wm_env.lm.models.folder import EMBEDDED

KEY = Key(bytes(range(32)))
PAYLOAD = [1, 0, 0, 1] * 8
PROMPTS = torch.tensor([[500, 600, 700], [800, 900, 1000], [50, 60, 70]])
OTHER_TOKENS = sorted(set(range(8192)) - set(word_tokens().tolist()))
ENDING, FILLING = 1, 0


@pytest.fixture(scope="module")
def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=8192, n_positions=160, n_embd=16, n_layer=1, n_head=2)
    return GPT2LMHeadModel(config).eval()


def generate(model, mark, prompts=PROMPTS, length=110, **arguments):
    """Texts of whole words, which re-tokenise to themselves; the tokens behind the prompts."""
    given = {"do_sample": False, "pad_token_id": FILLING, "eos_token_id": None, "suppress_tokens": OTHER_TOKENS}
    output = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        logits_processor=[mark],
        max_new_tokens=length,
        **given | arguments,
    )
    return output[:, prompts.shape[1] :]


def text_of(tokens):
    return "".join(letters()[token] for token in tokens.tolist() if token not in (ENDING, FILLING))


def test_every_text_of_a_batch_is_read_with_its_own_nonce(gpt2):
    mark = CovertWatermark(KEY, PAYLOAD, 3, mini_tokenizer(), temperature=0.8, top_k=200, top_p=0.95)
    output = generate(gpt2, mark)
    receiver = Receiver(KEY, mini_tokenizer(), nonces=range(8))
    for row, tokens in enumerate(output):
        found = receiver.decode(text_of(tokens))
        assert (found.payload, found.nonce) == (tuple(PAYLOAD), 3 + row)
    assert mark.nonces_used == 3


def test_a_text_of_a_batch_is_the_text_that_it_would_be_alone(gpt2):
    together = generate(gpt2, CovertWatermark(KEY, PAYLOAD, 0, mini_tokenizer()), length=20)
    for row in range(3):
        mark = CovertWatermark(KEY, PAYLOAD, row, mini_tokenizer())
        assert torch.equal(generate(gpt2, mark, PROMPTS[row : row + 1], 20)[0], together[row])


def test_the_law_is_that_of_generate_in_the_order_temperature_top_k_top_p(gpt2):
    """At each step the token is the winner of the race under the law that the library's own warpers leave."""
    temperature, top_k, top_p = 0.7, 40, 0.8
    mark = CovertWatermark(KEY, PAYLOAD, 0, mini_tokenizer(), temperature=temperature, top_k=top_k, top_p=top_p)
    output = generate(gpt2, mark, PROMPTS[:1], 30, suppress_tokens=None)
    writer = Writer(KEY, PAYLOAD, 0, RobustSettings(), letters())
    ids = PROMPTS[:1]
    for token in output[0]:
        scores = gpt2(ids).logits[:, -1].double()
        for warper in (TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)):
            scores = warper(ids, scores)
        assert writer.choose(torch.softmax(scores[0], dim=-1).detach().numpy()) == int(token)
        ids = torch.cat([ids, token.reshape(1, 1)], dim=1)


@given(st.integers(0, 2**32), st.integers(1, 12), st.floats(0.05, 0.99))
@settings(max_examples=60)
def test_truncated_laws_are_those_of_the_library(seed, top_k, top_p):
    scores = torch.from_numpy(np.random.default_rng(seed).normal(size=(1, 12)) * 2)
    expected = TopPLogitsWarper(top_p)(None, TopKLogitsWarper(top_k)(None, scores))
    law = truncated(torch.softmax(scores, dim=-1)[0].numpy(), top_p, top_k)
    assert law / law.sum() == pytest.approx(torch.softmax(expected, dim=-1)[0].numpy(), abs=1e-12)


def test_a_text_that_ends_before_the_others_is_left_alone(gpt2):
    """The likeliest end comes in the middle of a row; the others go on, and are read."""

    class EndsSecondRow:
        def __call__(self, input_ids, scores):
            scores = scores.clone()
            scores[:, ENDING] = -torch.inf
            if input_ids.shape[1] == 60:
                scores[1] = -torch.inf
                scores[1, ENDING] = 0.0
            return scores

    mark = CovertWatermark(KEY, PAYLOAD, 0, mini_tokenizer())
    kept = [token for token in OTHER_TOKENS if token != ENDING]
    arguments = {"eos_token_id": ENDING, "suppress_tokens": kept, "attention_mask": torch.ones_like(PROMPTS)}
    processors = [EndsSecondRow(), mark]
    output = gpt2.generate(
        PROMPTS, logits_processor=processors, max_new_tokens=110, do_sample=False, pad_token_id=FILLING, **arguments
    )[:, 3:]
    assert output[1, 57] == ENDING
    assert (output[1, 58:] == FILLING).all()
    receiver = Receiver(KEY, mini_tokenizer(), nonces=range(4))
    for row in (0, 2):
        assert receiver.decode(text_of(output[row])).payload == tuple(PAYLOAD)
    alone = generate(gpt2, CovertWatermark(KEY, PAYLOAD, 1, mini_tokenizer()), PROMPTS[1:2], 57)
    assert torch.equal(output[1, :57], alone[0])
    assert mark.nonces_used == 3


def test_beams_are_texts_of_their_own(gpt2):
    mark = CovertWatermark(KEY, PAYLOAD, 0, mini_tokenizer())
    output = generate(gpt2, mark, PROMPTS[:2], num_beams=3, num_return_sequences=2)
    receiver = Receiver(KEY, mini_tokenizer(), nonces=range(8))
    found = [receiver.decode(text_of(tokens)) for tokens in output]
    assert [reading.payload for reading in found] == [tuple(PAYLOAD)] * 4
    assert len({reading.nonce for reading in found}) == 4
    assert mark.nonces_used == 6


def test_a_choice_that_is_changed_is_noticed(gpt2):
    def other(input_ids, scores):
        return scores.roll(1, dims=1)

    mark = CovertWatermark(KEY, PAYLOAD, 0, mini_tokenizer())
    with pytest.raises(ValueError, match="where the mark chose"):
        gpt2.generate(
            PROMPTS,
            attention_mask=torch.ones_like(PROMPTS),
            logits_processor=[mark, other],
            max_new_tokens=5,
            do_sample=False,
            pad_token_id=FILLING,
            eos_token_id=None,
            suppress_tokens=OTHER_TOKENS,
        )


def test_a_mark_is_for_one_call(gpt2):
    mark = CovertWatermark(KEY, PAYLOAD, 0, mini_tokenizer())
    generate(gpt2, mark, length=5)
    with pytest.raises(ValueError, match="make a new CovertWatermark"):
        generate(gpt2, mark, length=5)


def test_the_processor_writes_what_the_writer_does():
    rng = np.random.default_rng(0)
    mark = CovertWatermark(KEY, PAYLOAD, 4, mini_tokenizer())
    ids = torch.zeros((1, 3), dtype=torch.int64)
    for _ in range(100):
        scores = mark(ids, torch.log(torch.tensor(toy_law(rng)))[None])
        assert scores.isfinite().sum() == 1
        ids = torch.cat([ids, scores.argmax(dim=1, keepdim=True)], dim=1)
    assert text_of(ids[0, 3:]) == write_words(KEY, PAYLOAD, 4, 100)
    assert mark.nonces_used == 1


def test_a_tokenizer_of_transformers_is_taken(gpt2):
    fast = PreTrainedTokenizerFast(tokenizer_file=str(EMBEDDED / "tokenizer.json"))
    outputs = [generate(gpt2, CovertWatermark(KEY, PAYLOAD, 0, given), length=10) for given in (fast, mini_tokenizer())]
    assert torch.equal(*outputs)
    with pytest.raises(ValueError, match="no fast tokenizer"):
        CovertWatermark(KEY, PAYLOAD, 0, object())
    with pytest.raises(ValueError, match="temperature=0"):
        CovertWatermark(KEY, PAYLOAD, 0, mini_tokenizer(), temperature=0)
