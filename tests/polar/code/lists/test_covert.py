"""Short frames with lists: the encoder's law is the cover's for every message, and messages are read behind edits."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import chisquare

from polar.code.lists.covert import SC, ListScheme, decode_list, design, draw_covert_states, encode, label_code, prices
from polar.code.lists.precoding import CHECKS, PAC_TAPS
from wm_env.theory.free_tokens import FreeTokens

SCHEMES = (SC, ListScheme(8), ListScheme(8, check=CHECKS[1]), ListScheme(8, taps=PAC_TAPS))


def bits(rng: np.random.Generator, frames: int, count: int) -> np.ndarray:
    return rng.integers(2, size=(frames, count), dtype=np.uint8)


@pytest.mark.parametrize("scheme", [SC, ListScheme(4, check=CHECKS[1]), ListScheme(4, taps=PAC_TAPS)])
@pytest.mark.parametrize("message", [0, 1])
def test_the_text_of_every_message_has_the_law_of_the_cover(scheme: ListScheme, message: int) -> None:
    """Four free tokens of eight: the sixteen texts of a message are equally likely, and stuck tokens as they are."""
    law = FreeTokens(0.5, 0.05)
    code, rng, frames = label_code(law), np.random.default_rng(1), 8000
    sets = design(prices(code, 3), 3, scheme)
    states = np.tile([0, 1, 0, 2, 2, 0, 1, 0], (frames, 1))
    messages = np.full((frames, 3), message, dtype=np.uint8)
    sent = encode(code, sets, scheme, states, messages, bits(rng, frames, sets.key_bits), rng)
    assert (sent[:, [1, 3, 4, 6]] == [0, 1, 1, 0]).all()
    number = sent[:, [0, 2, 5, 7]] @ [8, 4, 2, 1]
    assert chisquare(np.bincount(number, minlength=16)).pvalue > 1e-4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_messages_are_read_behind_edits_and_only_with_the_key(scheme: ListScheme) -> None:
    law = FreeTokens(0.6, 0.03)
    code, rng, frames = label_code(law), np.random.default_rng(2), 200
    sets = design(prices(code, 8), 12, scheme)
    states, messages = draw_covert_states(law, frames, 256, rng), bits(rng, frames, 12)
    keys = bits(rng, frames, sets.key_bits)
    sent = encode(code, sets, scheme, states, messages, keys, rng)
    received = sent ^ (rng.random(sent.shape) < law.flip)
    assert (received != sent).any(1).all()
    assert (decode_list(code, sets, scheme, received, keys) == messages).all(1).mean() > 0.97
    blind = decode_list(code, sets, scheme, received, bits(rng, frames, sets.key_bits))
    assert abs((blind != messages).mean() - 0.5) < 0.06


def test_a_list_encoder_contradicts_fewer_stuck_tokens_and_lists_err_less() -> None:
    law = FreeTokens(0.5, 0.025)
    code, frames = label_code(law), 300
    priced = prices(code, 7)
    wrong = []
    for scheme in (SC, ListScheme(16, check=CHECKS[2])):
        rng = np.random.default_rng(3)
        sets = design(priced, 20, scheme)
        states, messages = draw_covert_states(law, frames, 128, rng), bits(rng, frames, 20)
        keys = bits(rng, frames, sets.key_bits)
        sent = encode(code, sets, scheme, states, messages, keys, rng)
        received = sent ^ (rng.random(sent.shape) < law.flip)
        wrong.append(int((decode_list(code, sets, scheme, received, keys) != messages).any(1).sum()))
    assert wrong[1] < wrong[0] / 2


def test_the_label_law_is_that_of_the_capacity_and_leaves_the_cover() -> None:
    law = FreeTokens(0.5, 0.1)
    block = label_code(law).law
    induced = (block.p_label[:, :, None] * block.p_candidate).sum(1).numpy()
    assert induced == pytest.approx(block.cover.numpy())
    assert block.p_label[1].numpy() == pytest.approx(block.p_label[2].numpy()[::-1], abs=1e-4)


def test_a_design_uses_every_position_once_and_knows_its_room() -> None:
    priced = prices(label_code(FreeTokens(0.5, 0.05)), 4)
    for count, scheme in product((0, 3, 12), SCHEMES):
        sets = design(priced, count, scheme)
        assert sets.message.sum() == count + scheme.check.bits
        assert (sets.message.astype(int) + sets.key + sets.undecodable == 1).all()
    with pytest.raises(ValueError, match="13 message bits and 4 of the check in 16 positions"):
        design(priced, 13, SCHEMES[2])
