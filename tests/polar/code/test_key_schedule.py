import math

import numpy as np
import pytest
from small_laws import noiseless_law

from polar.code.key_schedule import KeySchedule, key_bits_of, theorem_key_bits


@pytest.mark.parametrize(("bits", "key_bits"), [(3, 0), (3, 2), (3, 3), (3, 5), (0, 2), (1, 6)])
def test_keys_map_one_to_one_to_pads_and_surplus(bits, key_bits):
    schedule = KeySchedule(bits, key_bits)
    keys = np.arange(2**key_bits)
    pairs = set(zip(schedule.pad(keys).tolist(), schedule.surplus_word(keys).tolist(), strict=True))
    assert len(pairs) == 2**key_bits
    assert all(0 <= pad < 2**bits and 0 <= rest < 2**schedule.surplus_bits for pad, rest in pairs)
    assert schedule.pad_bits == min(bits, key_bits)
    assert schedule.surplus_bits == max(key_bits - bits, 0)


def test_a_short_key_pads_the_first_message_bits():
    pads = KeySchedule(3, 2).pad(np.arange(4))
    assert [format(pad, "03b") for pad in pads] == ["000", "010", "100", "110"]


def test_number_of_keys_must_be_a_power_of_two():
    assert [key_bits_of(keys) for keys in (1, 2, 64)] == [0, 1, 6]
    for keys in (0, 3, -4):
        with pytest.raises(ValueError, match="power of two"):
            key_bits_of(keys)


def test_theorem_key_bits_round_the_information_up():
    law = noiseless_law(3, 8, seed=0)
    # X says U exactly in every state, so I(U;X|S) = H(U|S).
    h = sum(
        -float(z) * sum(p * math.log2(p) for p in row.tolist())
        for z, row in zip(law.state_probs, law.p_label, strict=True)
    )
    assert theorem_key_bits(law) == math.ceil(h)
