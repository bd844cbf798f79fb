"""Gelfand-Pinsker coding of short frames at total variation 0, with lists on both sides.

Tokens are free or stuck (`wm_env.theory.free_tokens`): the state leaves the token's label uniform, or determines it.
The label U that the code speaks of follows the law that the capacity asks for: a free token's label is U, a stuck one's
is U as often as P(U|S) says. The encoder forces the padded message with its check and the key positions, and looks for
the likeliest word U given the states that has these bits: successive-cancellation list *encoding*, the decoder's own
kernel with the states in the place of what is received. Stuck tokens that differ from U are noise for the decoder.

The law of the text is exactly the cover's for every message. The encoder draws w, uniform at free tokens and 0 at stuck
ones, forces the bits shifted by those of w, and adds w to the word it found. At free tokens P(U|S) does not prefer
either value, so the word is as likely. Its forced bits are the wanted ones. The pad and the key make the shifted bits
uniform whatever w is, so the word found is independent of w, and its sum with w is uniform at free tokens.

A position has two prices:

* forcing: what P(V_i | V^{i-1}, S^n) is away from uniform, c_i in total variation, averaged;
* error: if V_i is not known to the decoder, successive cancellation takes the wrong value with probability e_i.

A key position pays c_i, one that is neither message nor key e_i, a message position both. So the message takes the
positions with the smallest max(c_i, e_i), and each of the others is what is cheaper. Lists mend either, so the prices
are weighed: errors count `trust` times.
"""

from dataclasses import dataclass

import numpy as np
import torch

from polar.code.compiled import Bits
from polar.code.density_evolution import polarise
from polar.code.index_sets import IndexSets, TokenCode, crossovers, token_code
from polar.code.lists.passes import decode_paths
from polar.code.lists.precoding import NO_CHECK, NO_TAPS, Check, check_values, convolve, deconvolve
from polar.code.memoryless import check_bits
from polar.code.transform import polar_transform
from wm_env.common.arrays import Floats, Ints
from wm_env.theory.capacity import block_law, dense_cover
from wm_env.theory.free_tokens import FreeTokens, label_capacity


@dataclass(frozen=True)
class ListScheme:
    """How frames are encoded and decoded.

    Attributes:
        paths: of encoder and decoder; 1 is successive cancellation.
        taps: convolution in front of the transform (PAC), see `precoding`.
        check: CRC on the message.
        trust: factor on the prices of errors in `design`, above 0.
    """

    paths: int = 1
    taps: int = NO_TAPS
    check: Check = NO_CHECK
    trust: float = 1.0


SC = ListScheme()


@dataclass(frozen=True)
class Prices:
    """What a position costs, probabilities of shape (n,).

    Attributes:
        forcing: total variation between P(V_i | V^{i-1}, S^n) and a uniform bit, in [0, 1/2].
        error: probability that the decoder's likelier value is wrong, in [0, 1/2].
    """

    forcing: Floats
    error: Floats


def label_code(law: FreeTokens) -> TokenCode:
    """The law of one token with the label law of the capacity; states are free, stuck at 0, stuck at 1."""
    found = label_capacity(law)
    value_if_free = found.maps[:, 0]
    assignment = np.zeros((3, 2, 2))
    assignment[:, :, value_if_free] = found.law[:, None, :]
    assignment[0] = np.eye(2)
    cover = dense_cover(torch.from_numpy(law.state_probs), torch.from_numpy(law.cover))
    return token_code(block_law(cover, torch.from_numpy(assignment)), torch.from_numpy(law.channel))


def draw_covert_states(law: FreeTokens, frames: int, length: int, rng: np.random.Generator) -> Ints:
    """States S^n, shape (frames, length): 0 free, 1 stuck at 0, 2 stuck at 1."""
    return rng.choice(3, (frames, length), p=law.state_probs)


def prices(code: TokenCode, log_length: int) -> Prices:
    """The prices of n = 2^log_length positions, by density evolution of both sides."""
    given_states, given_output = (polarise(*crossovers(side[0]), log_length) for side in (code.encoder, code.decoder))
    return Prices(0.5 - given_states.error, given_output.error)


def design(priced: Prices, message_bits: int, scheme: ListScheme = SC) -> IndexSets:
    """What every position is for: message and check, key, or neither.

    Raises:
        ValueError: message and check need more positions than there are.
    """
    wanted, positions = message_bits + scheme.check.bits, len(priced.error)
    if message_bits < 0 or wanted > positions:
        raise ValueError(f"{message_bits} message bits and {scheme.check.bits} of the check in {positions} positions")
    error = scheme.trust * priced.error
    message = np.zeros(positions, dtype=np.bool_)
    message[np.argsort(np.maximum(priced.forcing, error), kind="stable")[:wanted]] = True
    key = ~message & (priced.forcing < error)
    return IndexSets(message[None], key[None], (~message & ~key)[None])


def encode(
    code: TokenCode,
    sets: IndexSets,
    scheme: ListScheme,
    states: Ints,
    messages: Ints,
    keys: Ints,
    rng: np.random.Generator,
) -> Ints:
    """The labels X of frames that hide one message each, bits of shape (F, n).

    Args:
        code, sets, scheme: of both ends, see `label_code` and `design`.
        states: S^n, shape (F, n).
        messages: bits without the check, shape (F, message bits).
        keys: bits that the decoder has too, shape (F, sets.key_bits): the pad, then the key positions.
        rng: the encoder's own randomness.

    Raises:
        ValueError: shapes that do not fit.
    """
    check_bits("messages", messages, (len(states), sets.message_bits - scheme.check.bits))
    check_bits("keys", keys, (len(states), sets.key_bits))
    pad, fixed = np.split(keys, [sets.message_bits], axis=1)
    word = np.zeros(states.shape, dtype=np.uint8)
    word[:, sets.message[0]] = np.bitwise_xor(np.hstack((messages, check_values(messages, scheme.check))), pad)
    word[:, sets.key[0]] = fixed

    shift: Bits = rng.integers(2, size=states.shape, dtype=np.uint8) * (states == 0)
    word ^= deconvolve(polar_transform(shift), scheme.taps)
    forced = (sets.message | sets.key)[0]
    found = decode_paths(code.encoder[0].llr[states, 0], forced, word[:, forced], scheme.paths, scheme.taps)
    word[:, ~forced] = found.free[:, 0]
    label = polar_transform(convolve(word, scheme.taps)) ^ shift
    return np.where(states == 0, label, states - 1)


def decode_list(code: TokenCode, sets: IndexSets, scheme: ListScheme, received: Ints, keys: Ints) -> Bits:
    """The messages of received labels, shape (F, n): of the likeliest path whose check is right, or of the likeliest.

    Raises:
        ValueError: shapes that do not fit.
    """
    check_bits("keys", keys, (len(received), sets.key_bits))
    pad, fixed = np.split(keys, [sets.message_bits], axis=1)
    known = sets.key[0]
    found = decode_paths(code.decoder[0].llr[received, 0], known, fixed, scheme.paths, scheme.taps)
    candidates = found.free[:, :, sets.message[0][~known]] ^ pad[:, None].astype(np.uint8)
    messages, checks = np.split(candidates, [sets.message_bits - scheme.check.bits], axis=2)
    right = (check_values(messages, scheme.check) == checks).all(2) & np.isfinite(found.log_prob)
    chosen: Bits = messages[np.arange(len(messages)), right.argmax(1)]
    return chosen
