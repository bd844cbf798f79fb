import numpy as np
from matplotlib.image import imread
from small_laws import random_law

from polar.evaluation import EvaluationSettings, evaluate
from polar.plots import ber_figure, pad_only_points, save_figure, variation_figure
from wm_env.limits import tree_limit
from wm_env.synthetic import synthetic_tree

TREE = synthetic_tree(2, 2, 4, 4, 1.5, overlap=0.5, seed=1)
POINTS = evaluate(TREE, random_law(TREE, 16, 1), EvaluationSettings((1, 2), (1, 2, 4, 8), transmissions=0))
LIMITS = {bits: tree_limit(TREE, bits) for bits in (1, 2)}


def test_the_key_of_the_error_figure_is_as_long_as_the_message():
    chosen = pad_only_points(POINTS)
    assert {(p.message_bits, p.keys) for p in chosen} == {(1, 2), (2, 4)}
    assert len(chosen) == 12
    assert {p.keys for p in pad_only_points([p for p in POINTS if p.keys != 4])} == {2}


def test_error_figure_draws_every_decoder_and_both_limits():
    axes = ber_figure(POINTS, LIMITS, 4).axes[0]
    assert len(axes.lines) == 3 * 2 + 2
    first = axes.lines[0]
    expected = [p.ber for p in pad_only_points(POINTS) if (p.decoder, p.state_knowledge) == ("sc", "marginal")]
    assert np.allclose(first.get_xdata(), [0.25, 0.5])
    assert np.allclose(first.get_ydata(), expected)
    assert np.allclose(axes.lines[-2].get_ydata(), [LIMITS[1].bit_error(0), LIMITS[2].bit_error(0)])
    assert "bits per token" in axes.get_xlabel()


def test_variation_figure_draws_frozen_and_dithered_keys():
    axes = variation_figure(POINTS, 4).axes[0]
    assert [line.get_label() for line in axes.lines] == [
        "0.250 bits/token, frozen", "0.250 bits/token, dither", "0.500 bits/token, frozen", "0.500 bits/token, dither",
    ]  # fmt: skip
    assert axes.get_xscale() == "log"
    assert list(axes.lines[0].get_xdata()) == [1, 2, 4, 8]


def test_figures_are_written_as_png(tmp_path):
    path = tmp_path / "figures" / "tv.png"
    save_figure(variation_figure(POINTS, 4), path)
    image = imread(path)
    assert image.shape[0] > 500
    assert image.std() > 0.01
    assert [file.name for file in path.parent.iterdir()] == ["tv.png"]
