import dataclasses

import numpy as np
from matplotlib.collections import LineCollection
from small_laws import random_law

from polar.code.adaptive import AdaptiveSettings
from polar.code.decoders import DECODERS
from polar.evaluation.adaptive import evaluate_adaptive
from polar.evaluation.exact import evaluate
from polar.evaluation.plots import ber_figure, one_key_points, variation_figure
from polar.evaluation.settings import EvaluationSettings
from wm_env.synthetic import synthetic_tree
from wm_env.theory.limits import law_limit

TREE = synthetic_tree(2, 2, 4, 4, 1.5, overlap=0.5, seed=1)
LAW = random_law(TREE, 16, 1)
POINTS = evaluate(TREE, LAW, EvaluationSettings((1, 2), (1, 2, 4, 8), transmissions=0))
LIMITS = {bits: law_limit(LAW, bits) for bits in (1, 2)}


def test_the_key_of_the_error_figure_is_as_long_as_the_message():
    chosen = one_key_points(POINTS)
    assert {(p.message_bits, p.keys) for p in chosen} == {(1, 2), (2, 4)}
    assert len(chosen) == 12
    assert {p.keys for p in one_key_points([p for p in POINTS if p.keys != 4])} == {2}


def test_error_figure_draws_every_decoder():
    axes = ber_figure(POINTS, LIMITS, 4).axes[0]
    assert len(axes.lines) == 3 * 2 + 2
    first = next(line for line in axes.lines if line.get_label() == "successive (SC), state unknown")
    expected = [p.ber for p in one_key_points(POINTS) if (p.decoder, p.state_knowledge) == ("sc", "marginal")]
    assert np.allclose(first.get_xdata(), [0.25, 0.5])
    assert np.allclose(first.get_ydata(), expected)
    assert "bits per token" in axes.get_xlabel()


def test_decoders_of_one_message_length_stand_side_by_side():
    axes = ber_figure([p for p in POINTS if p.message_bits == 2], LIMITS, 4).axes[0]
    places = [float(line.get_xdata()[0]) for line in axes.lines[2:]]
    assert len(set(places)) == 6
    assert np.mean(places) == 0.5
    # Not at the edge, and not where another number of bits would be.
    assert max(abs(place - 0.5) for place in places) < 0.125
    assert axes.get_xlim() == (0, 0.75)


def test_rounding_errors_do_not_fill_the_error_axis():
    points = [dataclasses.replace(point, ber=1e-18) for point in POINTS]
    axes = ber_figure(
        points, dict.fromkeys((1, 2), dataclasses.replace(LIMITS[1], distance_masses=np.eye(3)[0])), 4
    ).axes[0]
    assert axes.get_ylim() == (0, 1e-3)


def test_limit_of_the_error_figure_is_that_of_the_variation_which_the_code_spends():
    axes = ber_figure(POINTS, LIMITS, 4).axes[0]
    own, at_zero, *curves = axes.lines
    spent = {p.message_bits: p.tv_mean for p in one_key_points(POINTS)}
    assert list(own.get_ydata()) == [LIMITS[bits].bit_error(spent[bits]) for bits in (1, 2)]
    assert list(at_zero.get_ydata()) == [LIMITS[bits].bit_error(0) for bits in (1, 2)]
    assert (own.get_label(), at_zero.get_label()) == (
        "limit of all codes of one block at this TV",
        "limit at TV 0",
    )
    for curve in curves:
        assert (np.asarray(curve.get_ydata()) >= np.asarray(own.get_ydata()) - 1e-12).all()
    ticks = [tick.get_text().splitlines() for tick in axes.get_xticklabels()]
    assert ticks == [
        ["0.250", "1 bit", f"TV {spent[1]:.3f}"],
        ["0.500", "2 bits", f"TV {spent[2]:.3f}"],
    ]


def test_no_marker_hides_another():
    """Where curves agree their markers lie on each other: each must stick out, or leave the ones below to be seen."""
    for figure in (ber_figure(POINTS, LIMITS, 4), variation_figure(POINTS, 4)):
        marked = [line for line in figure.axes[0].lines if line.get_marker() in ("o", "s", "^")]
        for number, line in enumerate(marked):
            for above in marked[number + 1 :]:
                hides = above.get_fillstyle() == "full" and above.get_marker() == line.get_marker()
                assert not hides or above.get_markersize() < line.get_markersize()
        assert {line.get_fillstyle() for line in marked} == {"full", "none"}
        sizes = {
            style: [m.get_markersize() for m in marked if m.get_fillstyle() == style] for style in ("full", "none")
        }
        assert min(sizes["none"]) > max(sizes["full"]) + 2


def test_error_figure_without_a_key_that_only_pads():
    """The shortest key is shown, spent as in the paper."""
    few = [p for p in POINTS if p.keys >= 4 and p.message_bits == 1]
    assert {(p.keys, p.surplus_key) for p in few} == {(n, way) for n in (4, 8) for way in ("frozen", "dither")}
    assert one_key_points(few) == [p for p in few if (p.keys, p.surplus_key) == (4, "frozen")]
    assert {p.surplus_key for p in one_key_points([p for p in few if p.surplus_key == "dither"])} == {"dither"}
    axes = ber_figure(few, LIMITS, 4).axes[0]
    assert [len(line.get_xdata()) for line in axes.lines] == [1] * 8


def test_messages_that_follow_the_state_are_a_star_at_their_mean_length():
    point = evaluate_adaptive(TREE, LAW, AdaptiveSettings(0.6, 0.5))
    star = ber_figure(POINTS, LIMITS, 4, point).axes[0].lines[-1]
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([point.mean_bits / 4], [point.ber])
    assert star.get_label() == f"length follows the state, TV {point.tv_mean:.3f}"


def test_variation_figure_draws_frozen_and_dithered_keys():
    axes = variation_figure(POINTS, 4).axes[0]
    assert [line.get_label() for line in axes.lines] == [
        "0.250 bits/token, frozen", "0.250 bits/token, dither", "0.500 bits/token, frozen", "0.500 bits/token, dither",
    ]  # fmt: skip
    assert axes.get_xscale() == "log"
    assert list(axes.lines[0].get_xdata()) == [1, 2, 4, 8]


def test_a_decoder_without_a_colour_of_its_own_is_drawn_too(monkeypatch):
    """Ten decoders: more than there are colours."""
    more = {f"d{n}": dataclasses.replace(DECODERS["map"], name=f"d{n}", title=f"number {n}") for n in range(10)}
    monkeypatch.setattr("polar.code.decoders.DECODERS", {**DECODERS, **more})
    points = evaluate(TREE, LAW, EvaluationSettings((1, 2), (2, 4), tuple(more), ("path",), transmissions=0))
    labels = [line.get_label() for line in ber_figure(points, LIMITS, 4).axes[0].lines]
    assert labels[2:] == [f"number {n}, state from earlier blocks" for n in range(10)]


def test_measured_intervals_are_bars_at_the_place_of_their_point():
    points = evaluate(TREE, LAW, EvaluationSettings((1, 2), (2, 4), ("map",), ("path",), transmissions=200))
    axes = ber_figure(points, LIMITS, 4).axes[0]
    drawn = [bar for bar in axes.collections if isinstance(bar, LineCollection)]
    bars = [np.asarray(segment) for bar in drawn for segment in bar.get_segments() if len(segment)]
    assert [tuple(bar[:, 1]) for bar in bars] == [p.ber_mc_ci95 for p in one_key_points(points)]
    assert [bar[:, 0].tolist() for bar in bars] == [[0.25, 0.25], [0.5, 0.5]]
    assert "95 % interval of the measured rate" in axes.get_legend_handles_labels()[1]
    unmeasured = ber_figure(POINTS, LIMITS, 4).axes[0]
    assert "95 % interval of the measured rate" not in unmeasured.get_legend_handles_labels()[1]


def test_figures_say_which_law_they_show():
    for figure in (ber_figure(POINTS, LIMITS, 4, title="this law"), variation_figure(POINTS, 4, "this law")):
        assert figure.get_suptitle() == "this law"
