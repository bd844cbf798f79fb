import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_laws import random_law
from small_trees import uneven_tree

from wm_env.common.files import write_atomically
from wm_env.common.tensors import read_tensors, write_tensors
from wm_env.law import (
    LAW_FORMAT,
    advance,
    check_conditionals,
    induced_cover,
    joint_probs,
    load_law,
    roll_out,
    save_law,
    state_reach,
    symbol_label_probs,
)
from wm_env.synthetic import synthetic_tree

TREE = synthetic_tree(3, 2, 4, 4, 1.5, overlap=0.5, seed=1)


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(2, 5), st.floats(0, 1), st.integers(0, 1000))
def test_mass_is_conserved_through_every_transition(prompts, blocks, candidates, overlap, seed):
    tree = uneven_tree(prompts, blocks, candidates, overlap, seed)
    law = random_law(tree, 4, seed, sparse=seed % 2 == 1)
    for block in law.blocks:
        assert float(block.state_probs.sum()) == pytest.approx(1, abs=1e-12)
        assert float(joint_probs(block).sum()) == pytest.approx(1, abs=1e-12)
        assert float(symbol_label_probs(block).sum()) == pytest.approx(1, abs=1e-12)
        assert induced_cover(block).sum(1).tolist() == pytest.approx([1] * len(block.cover), abs=1e-12)
        assert float(induced_cover(block)[block.cover == 0].sum()) == 0


def test_transition_follows_labels_and_candidates_one_by_one():
    law = random_law(TREE, 4, 3)
    first, child = law.blocks[0], TREE.blocks[0].child
    expected = np.zeros(len(TREE.blocks[1].cover))
    for s in range(3):
        for u in range(4):
            for x in range(4):
                expected[child[s, x]] += float(first.state_probs[s] * first.p_label[s, u] * first.p_candidate[s, u, x])
    assert law.blocks[1].state_probs.tolist() == pytest.approx(expected, abs=1e-14)


def test_two_ways_into_a_state_add_up():
    child = torch.tensor([[0, 1], [1, -1]])
    induced = torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.float64)
    following = advance(torch.tensor([0.4, 0.6], dtype=torch.float64), induced, child, 2)
    assert following.tolist() == pytest.approx([0.1, 0.3 + 0.6])


def test_the_cover_as_policy_reaches_states_as_the_model_does():
    def policy(number, _):
        cover = torch.from_numpy(TREE.blocks[number].cover)
        return torch.full((len(cover), 2), 0.5, dtype=torch.float64), cover[:, None].expand(-1, 2, -1)

    law = roll_out(TREE, policy)
    for block, reach in zip(law.blocks, state_reach(TREE), strict=True):
        assert block.state_probs.tolist() == pytest.approx(reach, abs=1e-14)


def test_symbols_are_summed_over_states():
    law = random_law(TREE, 4, 7).blocks[1]
    expected = np.zeros((int(law.symbol.max()) + 1, 4))
    for s, z in enumerate(law.state_probs.tolist()):
        for u in range(4):
            for x in range(4):
                expected[int(law.symbol[s, x]), u] += z * float(law.p_label[s, u] * law.p_candidate[s, u, x])
    assert np.allclose(symbol_label_probs(law).numpy(), expected, atol=1e-15)


@pytest.mark.parametrize("sets", [None, ((0, 1), (3,))])
def test_a_stored_law_comes_back_exactly(tmp_path, sets):
    law = dataclasses.replace(random_law(TREE, 8, 2), message_sets=sets)
    save_law(law, tmp_path / "runs" / "law.safetensors")
    loaded = load_law(tmp_path / "runs" / "law.safetensors", TREE)
    assert (loaded.block_length, loaded.tree, loaded.message_sets) == (4, TREE.fingerprint, sets)
    for stored, read in zip(law.blocks, loaded.blocks, strict=True):
        for field in dataclasses.fields(stored):
            kept, found = getattr(stored, field.name), getattr(read, field.name)
            assert kept is found or torch.equal(kept, found)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["law.safetensors"]


def test_a_law_of_another_tree_is_refused(tmp_path):
    save_law(random_law(TREE, 8, 2), tmp_path / "law.safetensors")
    other = synthetic_tree(3, 2, 4, 4, 1.5, overlap=0.5, seed=2)
    with pytest.raises(
        ValueError, match=f"made for tree {TREE.fingerprint[:12]}, this tree is {other.fingerprint[:12]}"
    ):
        load_law(tmp_path / "law.safetensors", other)


def test_missing_and_damaged_files_are_refused(tmp_path):
    path = tmp_path / "law.safetensors"
    with pytest.raises(FileNotFoundError, match="no such covert-watermark law file"):
        load_law(path, TREE)
    save_law(random_law(TREE, 8, 2), path)
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged or cut short"):
            load_law(path, TREE)
    path.write_bytes(b"\xff" * 1000)
    with pytest.raises(ValueError, match="is no covert-watermark law file"):
        load_law(path, TREE)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("1.p_label", lambda a: a * 1.1, "P.u.s. of state 0 is not a probability law"),
        ("0.p_candidate", lambda a: a - 2 * a[:, ::-1], "W.x.u,s. of state 0 is not a probability law"),
        ("0.p_label", lambda a: a * np.nan, "not a probability law"),
        ("0.p_label", lambda a: a[:, :-1], "does not fit"),
        ("0.p_label", lambda a: a.reshape(-1), "does not fit"),
        ("0.p_label", lambda a: np.float64(1.0), "does not fit"),
        ("1.p_candidate", lambda a: a.astype(np.float32), "torch.float64 and torch.float32"),
        ("1.p_label", lambda a: a.astype(np.int64), "torch.int64 and torch.float64"),
    ],
)
def test_what_is_no_law_is_refused(tmp_path, name, spoil, message):
    path = tmp_path / "law.safetensors"
    save_law(random_law(TREE, 8, 2), path)
    arrays, meta = read_tensors(path, LAW_FORMAT)
    arrays[name] = spoil(arrays[name])
    write_atomically(path, lambda temporary: write_tensors(temporary, LAW_FORMAT, arrays, meta))
    with pytest.raises(ValueError, match=message):
        load_law(path, TREE)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda arrays, meta: meta.pop("tree"), "lacks a part .'tree'."),
        (lambda arrays, meta: meta.pop("blocks"), "lacks a part .'blocks'."),
        (lambda arrays, meta: meta.update(blocks=1), "blocks=1, but its tree has 2"),
        (lambda arrays, meta: meta.update(block_length=8), "block_length=8, but its tree has 4"),
        (lambda arrays, meta: meta.update(block_length="4"), "block_length='4': an integer is needed"),
        (lambda arrays, meta: meta.pop("message_sets"), "lacks a part .'message_sets'."),
        (lambda arrays, meta: arrays.pop("1.p_label"), "lacks a part .'1.p_label'."),
        (lambda arrays, meta: meta.update(tree=None), "made for tree None"),
        *(
            (lambda arrays, meta, sets=sets: meta.update(message_sets=sets), "lacks a part|message_sets")
            for sets in (5, "xy", [[99], [0]], [[0]], [["a"], [1]], [[-1], [-1]], [[1, 1], [1]], [0, 1], [[0], [True]])
        ),
    ],
)
def test_what_lacks_a_part_is_refused_in_one_line(tmp_path, spoil, message):
    path = tmp_path / "law.safetensors"
    save_law(random_law(TREE, 8, 2), path)
    arrays, meta = read_tensors(path, LAW_FORMAT)
    spoil(arrays, meta)
    write_tensors(path, LAW_FORMAT, arrays, meta)
    with pytest.raises(ValueError, match=message) as refusal:
        load_law(path, TREE)
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("meta", [None, [], 5, "tree"])
def test_metadata_of_another_type_is_refused(tmp_path, meta):
    write_tensors(tmp_path / "law", LAW_FORMAT, {}, meta)
    with pytest.raises(ValueError, match="law lacks a part"):
        load_law(tmp_path / "law", TREE)


def test_labels_are_a_power_of_two(tmp_path):
    save_law(random_law(TREE, 3, 2), tmp_path / "law.safetensors")
    with pytest.raises(ValueError, match="law with 3 labels: a power of two is needed"):
        load_law(tmp_path / "law.safetensors", TREE)


def test_mass_outside_the_support_is_refused():
    cover = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    p_label = torch.ones(1, 1, dtype=torch.float64)
    inside = torch.tensor([[[0.3, 0.7, 0.0]]], dtype=torch.float64)
    check_conditionals(p_label, inside, cover)
    with pytest.raises(ValueError, match="mass on a candidate that the cover does not have"):
        check_conditionals(p_label, inside.flip(2), cover)


def test_reach_by_hand(small_tree):
    reach = state_reach(small_tree)
    assert np.array_equal(reach[0], small_tree.prior)
    first = small_tree.blocks[0]
    for s in range(len(first.cover)):
        for q in range(5):
            expected = small_tree.prior[s] * first.cover[s, q]
            assert reach[1][first.child[s, q]] == pytest.approx(expected, abs=1e-15)
