import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trees import uneven_tree

from wm_env.common.tensors import read_tensors, write_tensors
from wm_env.synthetic import synthetic_tree
from wm_env.tree import TREE_FORMAT, TreeBlock, check_tree, load_tree, number_symbols, save_tree, subset


def replace_block(tree, number, **changes):
    blocks = list(tree.blocks)
    blocks[number] = dataclasses.replace(blocks[number], **changes)
    return dataclasses.replace(tree, blocks=tuple(blocks))


def test_round_trip(small_tree, tmp_path):
    save_tree(small_tree, tmp_path / "tree")
    again = load_tree(tmp_path / "tree")
    assert again.fingerprint == small_tree.fingerprint
    assert again.prompts == small_tree.prompts
    assert again.meta == small_tree.meta
    for old, new in zip(small_tree.blocks, again.blocks, strict=True):
        for field in dataclasses.fields(old):
            a, b = getattr(old, field.name), getattr(new, field.name)
            assert a == b if field.name == "text" else (np.array_equal(a, b) and a.dtype == b.dtype)


def test_fingerprint_sees_every_field(small_tree):
    block = small_tree.blocks[1]
    text = ((b"other", *block.text[0][1:]), *block.text[1:])
    changed = [
        replace_block(small_tree, 1, cover=block.cover[:, ::-1]),
        replace_block(small_tree, 1, retained=block.retained / 2),
        replace_block(small_tree, 1, text=text),
        dataclasses.replace(small_tree, prompts=("x", *small_tree.prompts[1:])),
        dataclasses.replace(small_tree, meta=dataclasses.replace(small_tree.meta, temperature=2.0)),
    ]
    assert len({tree.fingerprint for tree in [small_tree, *changed]}) == 6


def test_a_changed_file_is_refused(small_tree, tmp_path):
    save_tree(small_tree, tmp_path / "tree")
    data = bytearray((tmp_path / "tree").read_bytes())
    data[-3] ^= 1
    (tmp_path / "tree").write_bytes(data)
    with pytest.raises(ValueError, match="changed after it was written"):
        load_tree(tmp_path / "tree")
    (tmp_path / "tree").write_bytes(data[:-20])
    with pytest.raises(ValueError, match="damaged or cut short"):
        load_tree(tmp_path / "tree")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: replace_block(t, 0, cover=t.blocks[0].cover * 1.1), "cover of state 0 of block 1"),
        (lambda t: replace_block(t, 1, cover=np.where(np.arange(5) == 1, np.nan, t.blocks[1].cover)), "block 2"),
        (lambda t: replace_block(t, 0, child=np.roll(t.blocks[0].child, 1) * 0), "exactly once"),
        (lambda t: replace_block(t, 0, symbol=t.blocks[0].symbol * 0 - 1), "without a symbol"),
        (lambda t: replace_block(t, 0, symbol=t.blocks[0].symbol + 1), "numbered from 0"),
        (lambda t: replace_block(t, 1, child=t.blocks[1].child * 0), "exactly once"),
        (
            lambda t: replace_block(
                replace_block(t, 0, child=t.blocks[0].child * 0 - 1),
                1,
                **{field.name: getattr(t.blocks[1], field.name)[:0] for field in dataclasses.fields(TreeBlock)},
            ),
            "exactly once",
        ),
        (lambda t: replace_block(t, 1, tokens=t.blocks[1].tokens * 0 - 1), "block 2 has candidates without tokens"),
        (lambda t: replace_block(t, 1, retained=t.blocks[1].retained * np.nan), "block 2 has masses"),
        (lambda t: replace_block(t, 1, retained=t.blocks[1].retained + 1), "block 2 has masses"),
        (lambda t: replace_block(t, 0, log2_prob=t.blocks[0].log2_prob * np.nan), "block 1 has masses"),
        (lambda t: replace_block(t, 0, log2_prob=-t.blocks[0].log2_prob), "block 1 has masses"),
        (lambda t: dataclasses.replace(t, prior=t.prior * np.nan), "prior"),
        (lambda t: dataclasses.replace(t, prior=t.prior[:-1]), r"prior is float64 of shape \(5,\)"),
        (lambda t: dataclasses.replace(t, prompts=t.prompts[:-1]), "5 prompts for 6 states"),
        (lambda t: dataclasses.replace(t, prompts=(1, *t.prompts[1:])), "a prompt is not a string"),
        (lambda t: dataclasses.replace(t, blocks=()), "at least one block"),
        (lambda t: replace_block(t, 0, text=t.blocks[0].text[:-1]), "one text for every candidate"),
        *(
            (
                lambda t, field=field, spoil=spoil: replace_block(
                    t, 1, **{field.name: spoil(getattr(t.blocks[1], field.name))}
                ),
                f"{field.name} of block 2 is ",
            )
            for field in dataclasses.fields(TreeBlock)
            if field.name != "text"
            for spoil in (lambda a: a.reshape(-1, 1, 1, 1), lambda a: a[:, None], lambda a: a.astype(np.float16))
        ),
        *(
            (
                lambda t, name=name, value=value: dataclasses.replace(
                    t, meta=dataclasses.replace(t.meta, **{name: value})
                ),
                f"{name}=",
            )
            for name, value in (
                ("block_length", "x"),
                ("block_length", 1.5),
                ("block_length", 0),
                ("candidates", 0),
                ("candidates", None),
                ("temperature", np.nan),
                ("temperature", "1"),
                ("seed", -1),
                ("rows", True),
                ("model", 5),
                ("pool", None),
            )
        ),
        (lambda t: dataclasses.replace(t, prior=t.prior * 0.9), "prior"),
        (lambda t: dataclasses.replace(t, meta=dataclasses.replace(t.meta, block_length=6)), "power of two"),
    ],
)
def test_check_names_the_fault(small_tree, spoil, message):
    check_tree(small_tree)
    with pytest.raises(ValueError, match=message):
        check_tree(spoil(small_tree))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda arrays, header: arrays.pop("1.tokens"), "lacks '1.tokens'"),
        (lambda arrays, header: arrays.clear(), "lacks 'prior'"),
        (lambda arrays, header: [arrays.pop(name) for name in list(arrays) if name != "prior"], "at least one block"),
        (lambda arrays, header: arrays.update({"0.cover": arrays["0.cover"].reshape(-1)}), "holds no tree"),
        (lambda arrays, header: arrays.update({"0.cover": np.float64(1)}), "holds no tree"),
        (lambda arrays, header: arrays.update({"0.cover": np.zeros((0, 5))}), "holds no tree"),
        (lambda arrays, header: arrays.update({"0.text": arrays["0.text"][1:]}), "texts of block 1 do not fit"),
        (lambda arrays, header: arrays.update({"0.text_lengths": -arrays["0.text_lengths"]}), "texts of block 1"),
        (
            lambda arrays, header: arrays.update({"0.text_lengths": arrays["0.text_lengths"] * 1.0}),
            "text_lengths is float",
        ),
        (lambda arrays, header: header.pop("prompts"), "header: prompts is missing"),
        (lambda arrays, header: header.update(prompts=5), "header: prompts is 5, a list is needed"),
        # As many characters as there are prompts.
        (lambda arrays, header: header.update(prompts="abcdef"), "header: prompts is 'abcdef', a list is needed"),
        (
            lambda arrays, header: header["prompts"].__setitem__(1, None),
            r"header: prompts\[1\] is None, text is needed",
        ),
        (lambda arrays, header: header.update(more=1), "header: more is unknown"),
        (lambda arrays, header: header.update(meta=None), "header: meta is None, an object is needed"),
        (lambda arrays, header: header["meta"].update(colour="red"), "header: meta.colour is unknown"),
        (lambda arrays, header: header["meta"].pop("model"), "header: meta.model is missing"),
        *(
            (lambda arrays, header, name=name, value=value: header["meta"].update({name: value}), f"meta.{name} is ")
            for name, values in (
                ("model", (5, None, ["a"], {})),
                ("block_length", ("4", 4.0, True, None)),
                ("candidates", ([5], "5")),
                ("temperature", ("1", True, 10**400)),
                ("rows", (0.5, "")),
            )
            for value in values
        ),
        (lambda arrays, header: header["meta"].update(seed=-1), "seed=-1"),
    ],
)
def test_a_file_without_a_tree_is_refused_in_one_line(small_tree, tmp_path, spoil, message):
    path = tmp_path / "tree.safetensors"
    save_tree(small_tree, path)
    arrays, header = read_tensors(path, TREE_FORMAT)
    spoil(arrays, header)
    write_tensors(path, TREE_FORMAT, arrays, header)
    with pytest.raises(ValueError, match=message) as refusal:
        load_tree(path)
    assert str(refusal.value).startswith(str(path))
    assert str(refusal.value).endswith("build the tree again")
    assert "\n" not in str(refusal.value)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), st.integers(1, 5), st.integers(1, 2))
def test_subset_keeps_the_likeliest_and_stays_a_tree(prompts, candidates, blocks):
    tree = synthetic_tree(6, blocks=2, candidates=5, block_length=4, entropy=1.8, overlap=0.4, seed=3)
    cut = subset(tree, prompts, candidates, blocks)
    check_tree(cut)
    assert len(cut.blocks) == blocks
    assert cut.prompts == tuple(tree.prompts[row] for row in prompts)
    for new_row, old_row in enumerate(prompts):
        old, new = tree.blocks[0].cover[old_row], cut.blocks[0].cover[new_row]
        kept = sorted(old, reverse=True)[:candidates]
        assert sorted(new, reverse=True) == pytest.approx([p / sum(kept) for p in kept])
        assert cut.blocks[0].retained[new_row] == pytest.approx(sum(kept))
        # The same candidates lead to states with the same texts as before.
        if blocks == 2:
            names = tree.blocks[0].text[old_row]
            for q, name in enumerate(cut.blocks[0].text[new_row]):
                before = tree.blocks[1].text[tree.blocks[0].child[old_row, names.index(name)]]
                assert set(cut.blocks[1].text[cut.blocks[0].child[new_row, q]]) <= set(before)
    # Symbols are equal exactly where the tokens are.
    tokens = cut.blocks[-1].tokens.reshape(-1, 4)
    symbol = cut.blocks[-1].symbol.reshape(-1)
    for i in range(0, len(tokens), 7):
        assert np.array_equal(symbol == symbol[i], (tokens == tokens[i]).all(1))


@pytest.mark.parametrize("candidates", [5, 3])
@pytest.mark.parametrize("pool", [[0, 1, 2, 3, 4, 5, 6], [6, 2, 4, 1, 0]])
def test_cutting_in_two_steps_is_cutting_at_once(pool, candidates):
    tree = synthetic_tree(7, blocks=2, candidates=5, block_length=4, entropy=1.8, overlap=0.4, seed=3)
    cut = subset(tree, pool, candidates)
    assert subset(cut, range(len(pool))).fingerprint == cut.fingerprint
    assert subset(cut, [3, 1, 2]).fingerprint == subset(tree, [pool[3], pool[1], pool[2]], candidates).fingerprint


def test_subset_refuses(small_tree):
    for arguments, message in (
        (([],), "at least one"),
        (([6],), "prompts 0 to 5"),
        (([0], 6), "1 to 5"),
        (([0], 5, 3), "1 to 2"),
    ):
        with pytest.raises(ValueError, match=message):
            subset(small_tree, *arguments)


def test_number_symbols_gives_equal_texts_equal_numbers():
    assert number_symbols([[b" the", b" a"], [b" a", b""]]).tolist() == [[1, 0], [0, -1]]


def test_symbols_that_two_texts_share_are_refused(small_tree):
    symbol = small_tree.blocks[0].symbol.copy()
    symbol[symbol == symbol[0, 1]] = symbol[0, 0]
    with pytest.raises(ValueError, match="symbols"):
        check_tree(replace_block(small_tree, 0, symbol=symbol))


def test_a_state_with_one_text_twice_is_refused(small_tree):
    """Two candidates with one text are one event, whose entropy and colours they would count twice."""
    first = small_tree.blocks[0]
    symbol, text = first.symbol.copy(), [list(row) for row in first.text]
    own = next(q for q in range(5) if (symbol == symbol[2, q]).sum() == 1)
    symbol[2, own], text[2][own] = symbol[2, own - 1], text[2][own - 1]
    symbol = np.unique(symbol, return_inverse=True)[1].reshape(symbol.shape)
    with pytest.raises(ValueError, match="state 2 of block 1 has two candidates with one text"):
        check_tree(replace_block(small_tree, 0, symbol=symbol, text=tuple(map(tuple, text))))


def test_padded_candidates_are_not_taken_for_one_text():
    check_tree(uneven_tree())


def test_prompts_without_probability_are_refused(small_tree):
    prior = np.array([0, 0, 0.25, 0.25, 0.25, 0.25])
    with pytest.raises(ValueError, match="prompt 0 has probability 0"):
        check_tree(dataclasses.replace(small_tree, prior=prior))
    with pytest.raises(ValueError, match=r"prompts=\[1, 0\]: they have probability 0"):
        subset(dataclasses.replace(small_tree, prior=prior), [1, 0])
    assert subset(dataclasses.replace(small_tree, prior=prior), [1, 3]).prior.tolist() == [0, 1]
