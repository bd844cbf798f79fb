import json

import numpy as np
import pytest
from letters_lm import LETTERS, PROMPTS, letters_settings, write_letters
from tiny_lm import brute_force
from torch.distributed import HashStore

from wm_env.law import state_reach
from wm_env.lm.build.crew import Crew
from wm_env.lm.build.states import batches, grow_tree, pool_law
from wm_env.lm.models.load import load_lm
from wm_env.tree import check_tree, load_tree, save_tree, shipped_tree


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return load_lm(write_letters(tmp_path_factory.mktemp("lm")))


def grow(lm, pool="top", prompts=PROMPTS, batch_size=4, **options):
    return grow_tree(lm, prompts, letters_settings(pool), blocks=2, batch_size=batch_size, **options)


def test_every_state_has_the_law_of_its_context(lm):
    tree = grow(lm).tree
    contexts = [[LETTERS.index(letter.encode()) for letter in prompt] for prompt in PROMPTS]
    for number, block in enumerate(tree.blocks):
        assert len(contexts) == len(block.cover)
        following = {}
        for state, context in enumerate(contexts):
            law = brute_force(lm, len(LETTERS), context, 2, 1.5)
            best = sorted(law, key=law.get, reverse=True)[:4]
            assert sorted(map(tuple, block.tokens[state].tolist())) == sorted(best)
            for candidate, tokens in enumerate(map(tuple, block.tokens[state].tolist())):
                assert block.log2_prob[state, candidate] == pytest.approx(law[tokens], abs=1e-4)
                assert block.text[state][candidate] == b"".join(LETTERS[token] for token in tokens)
                following[block.child[state, candidate]] = [*context, *tokens]
            assert block.retained[state] == pytest.approx(sum(2 ** law[tokens] for tokens in best), abs=1e-4)
        contexts = [following[child] for child in sorted(following)] if number == 0 else []
    check_tree(tree)
    assert tree.prior.tolist() == [1 / 6] * 6
    assert tree.prompts == PROMPTS
    assert tree.meta.context_length == len("fade") + 2


def test_a_temperature_that_is_whole_is_the_one_that_the_file_gives_back(lm, tmp_path):
    tree = grow_tree(lm, PROMPTS[:1], letters_settings(temperature=2), blocks=1, batch_size=4).tree
    save_tree(tree, tmp_path / "tree")
    assert load_tree(tmp_path / "tree").fingerprint == tree.fingerprint


def test_equal_texts_have_equal_symbols_in_all_states(lm):
    for block in grow(lm).tree.blocks:
        names = {}
        for row, symbols in zip(block.text, block.symbol.tolist(), strict=True):
            for text, symbol in zip(row, symbols, strict=True):
                assert names.setdefault(text, symbol) == symbol
        assert sorted(names.values()) == list(range(len(names)))


def test_short_pools_are_padded_and_lead_nowhere(lm):
    tree = grow(lm, "sampled").tree
    first = tree.blocks[0]
    padded = first.tokens[:, :, 0] < 0
    assert padded.any()
    assert (first.cover[padded] == 0).all()
    assert (first.child[padded] == -1).all()
    assert (first.symbol[padded] == -1).all()
    assert (first.log2_prob[padded] == -np.inf).all()
    assert (first.child[~padded] >= 0).all()
    assert [reach.sum() for reach in state_reach(tree)] == pytest.approx([1, 1])


@pytest.mark.parametrize("pool", ["top", "sampled"])
def test_the_tree_does_not_depend_on_the_batch_size(lm, pool):
    fingerprints = {grow(lm, pool, batch_size=size).tree.fingerprint for size in (1, 2, 3, 7, 100)}
    assert len(fingerprints) == 1


def test_the_tree_depends_on_what_it_should(lm):
    base = grow(lm).tree.fingerprint
    assert base != grow(lm, prompts=PROMPTS[:-1]).tree.fingerprint
    for change in ({"temperature": 2.0}, {"candidates": 3}, {"beam_width": 13}):
        other = grow_tree(lm, PROMPTS, letters_settings(**change), blocks=2, batch_size=4)
        assert other.tree.fingerprint != base


class InterruptionError(Exception):
    pass


@pytest.mark.parametrize("pool", ["top", "sampled"])
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_an_interrupted_build_goes_on_to_the_same_tree(lm, tmp_path, pool, stop):
    finished = []

    def interrupt(states, flops):
        finished.append(states)
        if len(finished) > stop:
            raise InterruptionError

    with pytest.raises(InterruptionError):
        grow(lm, pool, parts=tmp_path / "parts", batch_size=3, report=interrupt)
    resumed = []
    tree = grow(lm, pool, parts=tmp_path / "parts", report=lambda states, flops: resumed.append(states)).tree
    assert tree.fingerprint == grow(lm, pool).tree.fingerprint
    assert resumed[0] > 0


def test_finished_batches_of_another_build_are_not_lost_and_damaged_ones_made_again(lm, tmp_path):
    parts = tmp_path / "parts"
    grow(lm, parts=parts)
    before = {path: path.read_bytes() for path in parts.iterdir()}
    was = letters_settings().temperature
    with pytest.raises(ValueError, match=f"another build, with temperature {was}, not 2.5: give its options"):
        grow_tree(lm, PROMPTS, letters_settings(temperature=2.5), blocks=2, batch_size=4, parts=parts)
    assert {path: path.read_bytes() for path in parts.iterdir()} == before
    for path in parts.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert grow(lm, parts=parts).tree.fingerprint == grow(lm).tree.fingerprint
    assert set(parts.iterdir()) == set(before)


def test_finished_batches_of_another_number_of_rows_are_made_again(lm, tmp_path):
    parts = tmp_path / "parts"
    grow(lm, parts=parts)
    other = letters_settings(rows=letters_settings().rows + 1)
    made = grow_tree(lm, PROMPTS, other, blocks=2, batch_size=4, parts=parts).tree
    assert made.fingerprint == grow_tree(lm, PROMPTS, other, blocks=2, batch_size=9).tree.fingerprint


def test_a_mass_may_be_far_below_the_precision_of_one():
    """The masses of the shipped tree, some 1e-17, against a sum in float64."""
    for block in shipped_tree().blocks:
        assert block.retained == pytest.approx(np.exp2(block.log2_prob).sum(axis=1), rel=1e-12, abs=0.0)
        assert block.retained.max() < 2**-40


def test_batches_are_of_equal_length_without_repetition():
    contexts = [(1, 2), (3,), (1, 2), (4, 5), (6, 7), (8,)]
    assert list(batches(contexts, 2)) == [[(3,), (8,)], [(1, 2), (4, 5)], [(6, 7)]]


def test_processes_that_compute_differently_do_not_build_one_tree(lm, tmp_path):
    store = HashStore()
    Crew(0, 2, store).agree("law", json.dumps(pool_law(lm, letters_settings(temperature=2.5))))
    with pytest.raises(ValueError, match=r"process 1 has temperature 1\.5, process 0 has 2\.5"):
        grow(lm, parts=tmp_path / "parts", crew=Crew(1, 2, store))
    with pytest.raises(ValueError, match="need a folder"):
        grow(lm, crew=Crew(1, 2, store))


def test_a_part_that_another_machine_cannot_see_is_named(lm, tmp_path):
    store = HashStore()
    other = Crew(1, 2, store)
    # The other process takes all the work and says that it is done.
    other.add("block 0", 100)
    for when in ("start", "block 0"):
        other.add(f"{when}: all written", 1)
        other.add(f"{when}: all read", 1)
    with pytest.raises(ValueError, match="folder that all machines share"):
        grow(lm, parts=tmp_path / "parts", crew=Crew(0, 2, store))
