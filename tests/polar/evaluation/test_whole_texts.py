"""Messages over the blocks of a text: against the code itself, sent and read, and against the limits."""

import numpy as np
import pytest
from small_laws import random_law
from small_trees import uneven_tree

from polar.evaluation.whole_texts import success, whole_text_points
from polar.text.offset_coding import block_weights, decode_text, draw_offset, encode_text
from wm_env.criteria.text_budget import texts_of
from wm_env.law import induced_cover


def test_the_code_reads_as_many_messages_as_is_told():
    tree = uneven_tree(2, 2, 6, 0.5, 1)
    law = random_law(tree, 4, 2)
    laws = [induced_cover(block).numpy() for block in law.blocks]
    told = success(tree.prior, texts_of(tree, laws)[0], 2)
    rng, read, count = np.random.default_rng(0), 0, 4000
    for _ in range(count):
        prompt, message = rng.choice(len(tree.prior), p=tree.prior), int(rng.integers(4))
        offset = draw_offset(2, rng)

        def weights(path, prompt=prompt):
            state = prompt
            for number, block in enumerate(tree.blocks):
                yield block_weights(laws[number][state])
                state = block.child[state, path[number]] if number < len(path) else state

        path: list[int] = []
        for _ in tree.blocks:
            # Block by block: the next state is known only once the candidate is chosen.
            path = encode_text(list(weights([*path, 0]))[: len(path) + 1], message, 2, offset)
        read += decode_text(list(weights(path)), path, 2, offset) == message
    assert abs(read / count - told) < 4 * np.sqrt(told * (1 - told) / count)


def test_points_keep_their_targets_and_stay_below_the_limits():
    tree = uneven_tree(3, 2, 6, 0.5, 4)
    points = whole_text_points(tree, random_law(tree, 8, 1))
    assert [point.blocks for point in points] == [1, 1, 1, 2, 2, 2]
    for point in points:
        assert point.error <= point.target + 1e-12
        assert point.message_bits <= point.limit_bits
        assert point.rate_bits_per_token == pytest.approx(point.message_bits / point.blocks / tree.block_length)
    bits = [point.message_bits for point in points]
    assert bits == sorted(bits[:3]) + sorted(bits[3:])
