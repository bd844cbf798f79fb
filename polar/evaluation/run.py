"""The exact evaluation of a run folder from end to end: load, evaluate, print, write."""

from collections.abc import Sequence
from pathlib import Path

import torch

from polar.code.construction import chain_entropies, design_codes
from polar.code.key_schedule import KeySchedule
from polar.evaluation.adaptive import evaluate_adaptive
from polar.evaluation.choices import adaptive_settings, decoders_of, fixed_lengths, with_message_sets
from polar.evaluation.covertness import average_entropy, retained_mass
from polar.evaluation.edits import EditedPoint, edited_error_rates
from polar.evaluation.exact import evaluate, left_out
from polar.evaluation.plots import ber_figure, one_key_points, variation_figure
from polar.evaluation.report import (
    LEGEND,
    RESULTS_MARK,
    adaptive_table,
    covertness_table,
    edited_table,
    error_table,
    exact_content,
    law_fingerprint,
    limit_table,
    live_results,
    variation_table,
    whole_text_table,
)
from polar.evaluation.settings import EvaluationSettings
from polar.evaluation.whole_texts import whole_text_points
from wm_env.common.command import say
from wm_env.common.figures import FIGURE_MARK, save_figure
from wm_env.common.files import check_output, write_json
from wm_env.common.foreign.visible import visible
from wm_env.criteria.channel import tree_channels
from wm_env.criteria.costs import cost_of
from wm_env.information import law_totals, measure, text_total_variation
from wm_env.law import JointLaw
from wm_env.optimum import FEASIBLE
from wm_env.runs import FinishedRun, RunTask, check_there, load_run
from wm_env.theory.limits import law_limit
from wm_env.tree import StateTree

_ALL_ROWS = 40
"""Up to so many operating points are printed one by one."""

OTHER_FOLDER = "choose another folder for the results"
"""What to do where results cannot be written or read."""


def evaluate_run(
    path: Path, out: Path | None = None, settings: EvaluationSettings | None = None, formats: Sequence[str] = ("png",)
) -> None:
    """Evaluate the law of a run folder; prints tables, writes results.json and the figures ber and tv.

    Args:
        path: the run folder.
        out: folder of what is written; `evaluation` in the run folder if left out.
        settings: what to evaluate; the paper's two figures if left out.
        formats: of the figures, png, pdf or svg.

    Raises:
        FileNotFoundError: no such run, or no tree or law in it.
        ValueError: a damaged file, a law of another tree, or settings that the law cannot meet.
        OSError: `out` cannot be written, or its live.json cannot be read.
        WorkFailedError: the run folder was removed meanwhile.
    """
    settings = EvaluationSettings() if settings is None else settings
    run = load_run(path)
    out = run.folder.evaluation if out is None else out
    tree, law = run.tree, with_message_sets(run.law, settings)
    lengths, how_well = fixed_lengths(law, settings), adaptive_settings(settings, run.task)
    figures = {name: [out / f"{name}.{ending}" for ending in formats] for name in ("ber", "tv")}
    check_output(out / "results.json", OTHER_FOLDER, RESULTS_MARK)
    for file in (*figures["ber"], *figures["tv"]):
        check_output(file, OTHER_FOLDER, FIGURE_MARK)
    live = live_results(out, law)
    say(describe(tree, law))
    if (excess := over_budget(run.task, tree, law)) is not None:
        say(f"law {excess}")
    if beyond := left_out(law, settings):
        pairs = ", ".join(f"{keys} at {bits} message bits" for bits, keys in beyond)
        say(f"left out, since the law has too few positions to freeze so many keys: {pairs}")
    points = evaluate(tree, law, settings)
    if not points:
        raise ValueError("no operating point is left: name fewer keys, or the surplus dither")
    adapted = None
    if "auto" in settings.message_bits or (not settings.message_bits and run.task.lengths_follow_state):
        adapted = evaluate_adaptive(tree, law, how_well, settings.transmissions, settings.seed)
    edited = edited_points(tree, law, lengths, settings)
    whole = whole_text_points(tree, law)
    limits = {bits: law_limit(law, bits) for bits in lengths}
    check_there(run)
    write_json(out / "results.json", exact_content(tree, law, points, limits, adapted, live, edited, whole))
    shown = figure_title(run, law)
    for file in figures["ber"]:
        save_figure(ber_figure(points, limits, law.block_length, adapted, shown), file)
    for file in figures["tv"]:
        save_figure(variation_figure(points, law.block_length, shown), file)
    say(f"\nWhat the columns mean\n{LEGEND}")
    if adapted is not None:
        say(f"\nMessage length by state\n{adaptive_table(adapted, law.block_length)}")
    rows, title = points, "Error rates" if adapted is None else "Error rates of fixed lengths"
    if len(points) > _ALL_ROWS:
        rows = one_key_points(points)
        title += f" with the longest key that only pads, or else the shortest ({len(rows)} of {len(points)} points)"
    say(f"\n{title}\n{error_table(rows, limits)}")
    if edited:
        share = f"{100 * settings.noise:g} % of the tokens edited ({settings.channel})"
        say(f"\nError rates with {share}, state unknown, key of l bits\n{edited_table(edited)}")
    if whole:
        say(
            "\nOne message over the blocks of a text, arithmetic coding from a shared offset, prompt known\n"
            f"{whole_text_table(whole)}"
        )
    say(f"\nTotal variation of the same points\n{covertness_table(rows)}")
    say(f"\nTotal variation, mean over messages, against the number of keys\n{variation_table(points)}")
    say(f"\nOne-shot limits at total variation budgets, states as likely as under this law\n{limit_table(limits)}")
    written = [file.name for name in ("ber", "tv") for file in figures[name]]
    say(f"\n{visible(str(out / 'results.json'))}, {', '.join(written)}")


def edited_points(
    tree: StateTree, law: JointLaw, lengths: Sequence[int], settings: EvaluationSettings
) -> list[EditedPoint]:
    """Error rates of every length and decoder behind the channel of the settings; none without one."""
    if settings.channel == "none":
        return []
    channels = tree_channels(tree, settings.channel, settings.noise)
    chains = [chain_entropies(block, law.block_length) for block in law.blocks]
    codes = {bits: design_codes(law, chains, KeySchedule(bits, bits)) for bits in lengths}
    return [
        EditedPoint(bits, settings.channel, settings.noise, name, *edited_error_rates(law, code, channels, name))
        for bits, code in codes.items()
        for name in decoders_of(settings)
    ]


def over_budget(task: RunTask, tree: StateTree, law: JointLaw) -> str | None:
    """One line if a law costs more than the budget of its run."""
    kind = cost_of(task.cost)
    if task.budget == "text":
        cost = _text_variation(tree, law)
        if task.epsilon is None or cost <= task.epsilon + FEASIBLE:
            return None
        return f"over its budget: texts have a total variation of {cost:.4f}, and the run was allowed {task.epsilon:g}"
    cost = law_totals(law.blocks, task.gamma, kind).cost
    if task.epsilon is None or cost <= task.epsilon + FEASIBLE:
        return None
    told = f"{cost:.4f}{kind.unit and f' {kind.unit}'}"
    return f"over its budget: the blocks cost {told} in all, and the run was allowed {task.epsilon:g}"


def figure_title(run: FinishedRun, law: JointLaw) -> str:
    """Which law a figure shows: name of the run, fingerprint, rate, total variation of the text, model and sizes."""
    meta, totals = run.tree.meta, law_totals(law.blocks)
    return (
        f"{visible(run.folder.path.resolve().name)}: law {law_fingerprint(law)[:8]} on tree {run.tree.fingerprint[:8]} "
        f"of {visible(meta.model)}, L = {law.block_length}, B = {len(law.blocks)}, Q = {meta.candidates}\n"
        f"rate {totals.rate / len(law.blocks) / law.block_length:.4f} bits per token at total variation "
        f"{_text_variation(run.tree, law):.4f} of the text, before coding"
    )


def _text_variation(tree: StateTree, law: JointLaw) -> float:
    """Total variation of the uncoded text."""
    children = tuple(torch.from_numpy(block.child) for block in tree.blocks[:-1])
    return float(text_total_variation(law.blocks, children))


def describe(tree: StateTree, law: JointLaw) -> str:
    """A few lines on the tree and the uncoded law."""
    measures = [measure(block) for block in law.blocks]
    pairs = [chain_entropies(block, law.block_length) for block in law.blocks]
    count, bits = len(measures), law.block_length
    lines = [
        f"tree {tree.fingerprint[:12]}: {visible(tree.meta.model)}, {visible(tree.meta.pool)} pool, "
        f"{len(tree.prior)} prompts, "
        f"{tree.states} states, L = {bits}, B = {count}, Q = {tree.meta.candidates}, "
        f"H(X|S) = {average_entropy(tree):.3f} bits per block, retained mass {retained_mass(tree):.1e}",
        f"law: rate {sum(float(m.rate) for m in measures) / count / bits:.4f} bits per token, "
        f"I(U;X|S) = {sum(float(m.i_ux_given_s) for m in measures) / count:.3f} bits per block, "
        f"TV per block {' '.join(f'{float(m.cost):.4f}' for m in measures)}, "
        f"TV of the text {_text_variation(tree, law):.4f}",
    ]
    for number, chain in enumerate(pairs, start=1):
        lines.append(f"block {number}: H(V_i|V^i-1,S) {_row(chain.given_state)}")
        lines.append(f"         H(V_i|V^i-1,X) {_row(chain.given_output)}")
    if law.message_sets is not None:
        sets = "; ".join(" ".join(map(str, positions)) for positions in law.message_sets)
        lines.append(f"message positions of the law: {sets}")
    return "\n".join(lines)


def _row(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)
