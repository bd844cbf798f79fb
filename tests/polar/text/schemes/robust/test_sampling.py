import numpy as np
import pytest
import torch
from word_texts import letters, mini_tokenizer, toy_law, write_words

from polar.text.keys.key import Key
from polar.text.schemes.robust.processor import CovertWatermark
from polar.text.schemes.robust.reader import Receiver
from polar.text.schemes.robust.sampling import Sampling, truncated, write_confident, write_forward
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.schemes.robust.writer import Writer
from wm_env.lm.models.load import load_lm

KEY = Key(bytes(range(32)))
PAYLOAD = [1, 0, 0, 1] * 8


@pytest.fixture(scope="module")
def mini():
    return load_lm("mini")


def test_truncated_laws():
    law = np.array([0.1, 0.4, 0.2, 0.3])
    assert truncated(law, 1.0, None) is law
    assert truncated(law, 0.7, None).tolist() == [0, 0.4, 0, 0.3]
    assert truncated(law, 0.71, None).tolist() == [0, 0.4, 0.2, 0.3]
    assert truncated(law, 1.0, 1).tolist() == [0, 0.4, 0, 0]
    assert truncated(law, 0.5, 3).tolist() == [0, 0.4, 0, 0.3]


def test_a_batch_writes_what_each_text_alone_would(mini):
    contexts = np.array([mini.encode("The mayor said on")[:3], mini.encode("Two dogs ran home")[:3]])
    sampling = Sampling(temperature=0.8, top_p=0.9)

    def writers():
        return [Writer(KEY, PAYLOAD, nonce, RobustSettings(), letters()) for nonce in (0, 1)]

    both = write_forward(mini, contexts, writers(), 12, sampling)
    alone = write_forward(mini, contexts[1:], writers()[1:], 12, sampling)
    assert both.shape == (2, 12)
    assert np.array_equal(both[1], alone[0])
    assert not np.array_equal(both[0], both[1])


def test_the_most_confident_place_comes_first(mini):
    asked = []

    class Recorder(Writer):
        def choose_at(self, law, place):
            asked.append(place)
            return super().choose_at(law, place)

    writer = Recorder(KEY, PAYLOAD, 0, RobustSettings(clock="tokens"), letters())
    tokens = write_confident(mini, mini.encode("The mayor said"), writer, 8, Sampling(block_length=4))
    assert len(tokens) == 8
    assert sorted(asked[:4]) == [0, 1, 2, 3]
    assert sorted(asked[4:]) == [4, 5, 6, 7]
    assert mini.mask_id not in tokens


def test_the_processor_writes_what_the_writer_does():
    rng = np.random.default_rng(0)
    mark = CovertWatermark(KEY, PAYLOAD, 4, mini_tokenizer())
    ids = torch.zeros((1, 3), dtype=torch.int64)
    for _ in range(100):
        scores = mark(ids, torch.log(torch.tensor(toy_law(rng)))[None])
        assert scores.isfinite().sum() == 1
        ids = torch.cat([ids, scores.argmax(dim=1, keepdim=True)], dim=1)
    text = "".join(letters()[token] for token in ids[0, 3:].tolist())
    assert text == write_words(KEY, PAYLOAD, 4, 100)
    assert mark.nonces_used == 1
    assert Receiver(KEY, mini_tokenizer(), nonces=range(8)).decode(text).payload == tuple(PAYLOAD)
    with pytest.raises(ValueError, match="make a new CovertWatermark"):
        mark(ids[:, :5], scores)


def test_generate_of_transformers():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8192, n_positions=64, n_embd=16, n_layer=1, n_head=2)).eval()
    mark = CovertWatermark(KEY, PAYLOAD, 0, mini_tokenizer(), temperature=0.9, top_k=50, top_p=0.9)
    inputs = torch.tensor([[5, 6, 7], [8, 9, 10]])
    output = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        logits_processor=[mark],
        do_sample=False,
        max_new_tokens=10,
        pad_token_id=0,
        eos_token_id=None,
    )
    assert output.shape == (2, 13)
    assert mark.nonces_used == 2
    law = torch.softmax(model(output[:1, :-1]).logits[0, -1].double() / 0.9, dim=-1).detach().numpy()
    assert truncated(law, 0.9, 50)[output[0, -1]] > 0
