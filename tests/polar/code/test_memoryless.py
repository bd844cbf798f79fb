"""Long polar codes: index sets, exact round trips, the encoder's law against the cover, noise, the cache."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from polar.code.density_evolution import variation_bound
from polar.code.index_sets import (
    IndexSets,
    Spectrum,
    TokenCode,
    choose_sets,
    divergence,
    expected_dead_ends,
    positions_within,
    spectrum,
    token_code,
)
from polar.code.memoryless import decode_tokens, draw_states, encode_tokens
from polar.code.transform import polar_transform
from wm_env.common.arrays import Ints
from wm_env.theory.capacity import (
    block_law,
    dense_cover,
    pair_cover,
    partition_assignment,
    token_substitution,
)


def pairs_code(vocabulary: int, labels: int) -> TokenCode:
    cover = pair_cover(vocabulary)
    label_of_token = torch.arange(vocabulary) * labels // vocabulary
    return token_code(block_law(cover, partition_assignment(cover, label_of_token, labels)))


def dense_code(tokens: int = 3, seed: int = 0) -> TokenCode:
    """U = X under a cover with full support: no bit is ever determined."""
    rng = np.random.default_rng(seed)
    cover = dense_cover(
        torch.tensor([0.25, 0.75], dtype=torch.float64), torch.from_numpy(rng.dirichlet([5.0] * tokens, 2))
    )
    return token_code(block_law(cover, partition_assignment(cover, torch.arange(tokens), tokens)))


def random_bits(frames: int, count: int, seed: int) -> Ints:
    return np.random.default_rng(seed).integers(0, 2, (frames, count), dtype=np.uint8)


def test_levels_are_the_bits_of_the_label_most_significant_first() -> None:
    code = dense_code(tokens=3)
    joint = (code.law.state_probs[:, None] * code.law.p_label).numpy()
    first, second = code.encoder
    for s in range(2):
        assert first.llr[s, 0] == pytest.approx(math.log((joint[s, 0] + joint[s, 1]) / joint[s, 2]))
        assert second.llr[s, 0] == pytest.approx(math.log(joint[s, 0] / joint[s, 1]))
        assert second.llr[s, 1] > 100, "label 3 does not exist"
        assert second.mass[s] == pytest.approx([joint[s, 0] + joint[s, 1], joint[s, 2]])


def test_spectrum_of_the_corollary_is_that_of_an_erasure_channel() -> None:
    found = spectrum(pairs_code(8, 2), 5)
    expected = np.array([16 / 28])
    for _ in range(5):
        expected = np.stack((1 - (1 - expected) ** 2, expected**2), -1).reshape(-1)
    assert 1 - found.deficit[0] == pytest.approx(expected, abs=1e-12)
    assert (found.decoder_entropy == 0).all()


def test_levels_of_the_corollary_share_one_bit_per_token() -> None:
    found = spectrum(pairs_code(8, 8), 4)
    assert found.deficit.shape == (3, 16)
    assert (1 - found.deficit).sum(1) / 16 == pytest.approx([16 / 28, 8 / 28, 4 / 28])


@pytest.mark.parametrize("salt_bits", [0, 3])
@pytest.mark.parametrize(("vocabulary", "labels"), [(8, 2), (8, 8), (6, 3)])
def test_every_frame_without_a_dead_end_is_decoded_and_tokens_come_from_the_state(
    vocabulary: int, labels: int, salt_bits: int
) -> None:
    code = pairs_code(vocabulary, labels)
    sets = choose_sets(spectrum(code, 7), 52, salt_bits)
    generator = torch.Generator().manual_seed(1)
    states = draw_states(code, 300, 128, generator)
    messages, keys = random_bits(300, sets.message_bits, 2), random_bits(300, sets.key_bits, 3)
    sent = encode_tokens(code, sets, states, messages, keys, np.random.default_rng(11))
    right = (decode_tokens(code, sets, sent.symbols, keys) == messages).all(1)
    assert right[sent.dead_ends == 0].all()
    assert right.mean() > 0.5
    pairs = code.law.symbol.numpy()[states]
    assert (pairs == sent.symbols[..., None]).any(-1).all()


def test_the_wrong_key_decodes_nothing() -> None:
    code = pairs_code(8, 2)
    sets = choose_sets(spectrum(code, 7), 40)
    generator = torch.Generator().manual_seed(1)
    states = draw_states(code, 50, 128, generator)
    messages, keys = random_bits(50, 40, 2), random_bits(50, 40, 3)
    sent = encode_tokens(code, sets, states, messages, keys, np.random.default_rng(11))
    wrong = decode_tokens(code, sets, sent.symbols, random_bits(50, 40, 4))
    assert abs((wrong != messages).mean() - 0.5) < 0.06


def test_look_ahead_and_salt_each_rescue_frames() -> None:
    code = pairs_code(8, 2)
    polarised = spectrum(code, 8)
    generator = torch.Generator().manual_seed(5)
    states = draw_states(code, 300, 256, generator)

    def failures(salt_bits: int, particles: int) -> int:
        sets = choose_sets(polarised, 120, salt_bits)
        messages, keys = random_bits(300, sets.message_bits, 6), random_bits(300, sets.key_bits, 7)
        sent = encode_tokens(code, sets, states, messages, keys, np.random.default_rng(11), particles)
        return int((decode_tokens(code, sets, sent.symbols, keys) != messages).any(1).sum())

    plain = failures(0, 1)
    assert failures(0, 16) < plain / 2
    assert failures(5, 1) < plain / 2
    assert failures(5, 16) < 5


@pytest.mark.parametrize(("salt_bits", "particles"), [(0, 1), (0, 4), (2, 1), (2, 3)])
def test_for_every_message_the_tokens_have_the_law_of_the_cover(salt_bits: int, particles: int) -> None:
    """Corollary model, far more message bits than the state can carry: dead ends abound, and the law is still exact."""
    code = pairs_code(4, 2)
    sets = choose_sets(spectrum(code, 2), 3 if salt_bits == 0 else 4, salt_bits)
    frames = 16_000
    # Pairs (0,2), (0,1), (1,3), (2,3): the second and the last lie inside one half and fix their label.
    states = np.tile(np.array([1, 0, 4, 5]), (frames, 1))
    messages = np.tile(random_bits(1, sets.message_bits, 9), (frames, 1))
    sent = encode_tokens(
        code, sets, states, messages, random_bits(frames, sets.key_bits, 10), np.random.default_rng(11), particles
    )
    assert (sent.dead_ends > 0).mean() > 0.05
    pairs = code.law.symbol.numpy()[states[0]]
    which = (sent.symbols == pairs[:, 1]).astype(int)
    counts = np.bincount(which @ [8, 4, 2, 1], minlength=16)
    # Uniform over the 16 texts that the state allows.
    assert chisquare(counts).pvalue > 1e-4


def filling_divergence(code: TokenCode, sets: IndexSets, n: int) -> tuple[float, float]:
    """D(cover || filling law) and their total variation on (S^n, V^n), over all states and words; one level."""
    state, label = code.law.state_probs.numpy(), code.law.p_label.numpy()
    words = np.array(list(product((0, 1), repeat=n)), dtype=np.uint8)
    u = polar_transform(words)
    forced = (sets.message | sets.key)[0]
    bits = variation = 0.0
    for side in product(range(len(state)), repeat=n):
        weight = math.prod(state[s] for s in side)
        law = np.prod([label[s][u[:, t]] for t, s in enumerate(side)], axis=0)
        filled = np.ones(len(words))
        for i in range(n):
            step = law.reshape(2**i, 2, -1).sum(2)
            conditional = (step / step.sum(1, keepdims=True)).reshape(-1).repeat(2 ** (n - 1 - i))
            filled *= 0.5 if forced[i] else conditional
        bits += weight * float((law * np.log2(law / filled)).sum())
        variation += weight * float(np.abs(law - filled).sum()) / 2
    return bits, variation


@pytest.mark.parametrize("positions", [1, 3, 4])
def test_divergence_bounds_the_enumerated_one_and_pinsker_the_variation(positions: int) -> None:
    code = dense_code(tokens=2, seed=3)
    polarised = spectrum(code, 2)
    sets = choose_sets(polarised, positions)
    bits, variation = filling_divergence(code, sets, 4)
    bound = divergence(polarised, sets)
    assert bits <= bound <= 1.1 * bits + 1e-6
    assert variation <= variation_bound(bound)
    assert expected_dead_ends(polarised, sets) < 1e-9


def test_variation_bound_is_pinsker_in_bits_and_at_most_1() -> None:
    assert variation_bound(0.0) == 0
    assert variation_bound(2 / math.log(2) * 0.25) == pytest.approx(0.5)
    assert variation_bound(100.0) == 1


def test_the_bound_falls_with_the_length_at_a_fixed_rate() -> None:
    code = dense_code()
    values = []
    for log_length in (4, 7, 10):
        polarised = spectrum(code, log_length)
        values.append(divergence(polarised, choose_sets(polarised, int(0.8 * 2**log_length))))
    assert values[0] > values[1] > values[2]


def test_noisy_text_is_decoded_with_the_help_of_key_positions() -> None:
    cover, channel = pair_cover(8), token_substitution(8, 0.02)
    law = block_law(cover, partition_assignment(cover, torch.arange(8) // 4, 2))
    code = token_code(law, channel)
    sets = choose_sets(spectrum(code, 9), 40)
    assert sets.key.any()
    assert not (sets.key & sets.message).any()
    generator = torch.Generator().manual_seed(3)
    states = draw_states(code, 100, 512, generator)
    messages, keys = random_bits(100, 40, 4), random_bits(100, sets.key_bits, 5)
    sent = encode_tokens(code, sets, states, messages, keys, np.random.default_rng(11))
    rng = np.random.default_rng(6)
    hit = rng.random(sent.symbols.shape) < 0.02
    received = np.where(hit, (sent.symbols + rng.integers(1, 8, sent.symbols.shape)) % 8, sent.symbols)
    assert hit.any(1).all()
    assert (decode_tokens(code, sets, received, keys) == messages).all(1).mean() > 0.9
    blind = keys.copy()
    blind[:, 40:] ^= 1
    assert (decode_tokens(code, sets, received, blind) == messages).all(1).mean() < 0.1


def test_sets_take_the_most_uniform_decodable_positions() -> None:
    polarised = Spectrum(
        deficit=np.array([[0.001, 0.002, 0.3, 0.9], [0.01, 0.5, 0.0, 0.2]]),
        certain=np.zeros((2, 4)),
        decoder_entropy=np.array([[0.0, 0.9, 0.0, 0.0], [0.0, 0.3, 0.1, 0.0]]),
    )
    sets = choose_sets(polarised, 3)
    assert sets.message.tolist() == [[True, False, False, False], [True, False, False, True]]
    assert sets.key.tolist() == [[False, True, False, False], [False, False, True, False]]
    assert sets.undecodable.tolist() == [[False] * 4, [False, True, False, False]]
    assert (sets.message_bits, sets.key_bits) == (3, 5)
    assert positions_within(polarised, 0.0115) == 2
    salted = choose_sets(polarised, 3, salt_bits=2)
    assert (salted.salts, salted.message_bits, salted.key_bits) == ((1, 2), 0, 5)
    with pytest.raises(ValueError, match="6 message positions asked for, 5 are decodable"):
        choose_sets(polarised, 6)


def test_the_cache_is_used_named_by_the_law_and_checked(tmp_path: Path) -> None:
    code = dense_code()
    fresh = spectrum(code, 4, tmp_path)
    (file,) = tmp_path.iterdir()
    again = spectrum(code, 4, tmp_path)
    assert (again.deficit == fresh.deficit).all()
    assert (again.decoder_entropy == fresh.decoder_entropy).all()
    spectrum(dense_code(seed=1), 4, tmp_path)
    spectrum(code, 5, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        spectrum(code, 4, tmp_path)


def test_wrong_shapes_are_named() -> None:
    code = pairs_code(4, 2)
    sets = choose_sets(spectrum(code, 3), 2)
    states = np.zeros((5, 8), dtype=np.int64)
    with pytest.raises(ValueError, match=r"messages must have shape \(5, 2\)"):
        encode_tokens(code, sets, states, random_bits(5, 3, 0), random_bits(5, 2, 0), np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"keys must have shape \(5, 2\)"):
        decode_tokens(code, sets, states, random_bits(5, 1, 0))
