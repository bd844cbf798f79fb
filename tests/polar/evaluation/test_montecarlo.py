import numpy as np
import pytest
from scipy.stats import chisquare
from small_laws import noiseless_law

from polar.code.codec import code_channel
from polar.code.construction import BlockCode
from polar.code.decoders import decision_table, label_evidence, word_evidence
from polar.code.key_schedule import KeySchedule
from polar.evaluation.montecarlo import estimate_errors, receive, send_blocks


def test_estimates_count_wrong_bits():
    ber, (low, high) = estimate_errors(
        [np.array([0b000, 0b101]), np.array([0b111])], [np.array([0b000, 0b100]), np.array([0b001])], 3
    )
    assert ber == pytest.approx((0 + 1 + 2) / 9)
    assert low < ber < high


@pytest.mark.parametrize(
    "schedule", [KeySchedule(2, 0), KeySchedule(2, 1), KeySchedule(2, 3), KeySchedule(2, 5, "dither")]
)
def test_blocks_of_a_noiseless_law_arrive_under_every_key(schedule):
    law = noiseless_law(3, 16, 1)
    frozen = (0,) if schedule.surplus == "frozen" and schedule.surplus_bits else ()
    code = BlockCode(4, (1, 3), frozen, schedule.surplus_bits - len(frozen))
    table = decision_table("map", code, word_evidence(law, code_channel(law, code)), label_evidence(law))
    sent = send_blocks(law, code, schedule, 4000, np.random.default_rng(0))
    assert np.array_equal(receive(sent, schedule, law.symbol, table, schedule.surplus_word(sent.key)), sent.message)
    assert chisquare(np.bincount(sent.message, minlength=4)).pvalue > 1e-4
    if schedule.key_bits:
        assert chisquare(np.bincount(sent.key, minlength=1 << schedule.key_bits)).pvalue > 1e-4
    assert chisquare(np.bincount(sent.state, minlength=3), 4000 * law.state_probs.numpy()).pvalue > 1e-4
