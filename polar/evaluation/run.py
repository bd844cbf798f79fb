"""The evaluation of a run folder from end to end: load, evaluate, print, write."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from polar.code.adaptive import AdaptiveSettings
from polar.code.construction import chain_entropies, message_room, threshold_set
from polar.code.decoders import Decoder, Knowledge
from polar.code.key_schedule import Surplus, key_bits_of, theorem_key_bits
from polar.evaluation.adaptive import evaluate_adaptive
from polar.evaluation.covertness import average_entropy, retained_mass
from polar.evaluation.exact import EvaluationSettings, evaluate, left_out
from polar.evaluation.plots import ber_figure, one_key_points, save_figure, variation_figure
from polar.evaluation.report import (
    LEGEND,
    adaptive_table,
    covertness_table,
    error_table,
    limit_table,
    live_results,
    results,
    variation_table,
)
from wm_env.common.files import check_seed, check_writable, read_json, write_json
from wm_env.common.json_values import is_finite, read_as
from wm_env.costs import TOTAL_VARIATION, cost_of
from wm_env.information import law_totals, measure, text_total_variation
from wm_env.law import JointLaw, load_law
from wm_env.optimum import FEASIBLE
from wm_env.theory.limits import law_limit
from wm_env.tree import StateTree, load_tree

_DEFAULT_BITS = 5
_ALL_ROWS = 40
"""Up to so many operating points are printed one by one."""


@dataclass(frozen=True)
class _Asked:
    """The settings of a run that its evaluation depends on."""

    epsilon: float | None = None
    gamma: float = 1.0
    cost: str = TOTAL_VARIATION.name
    message_bits: int | Literal["auto"] | None = None
    dither_bits: int = 0


@dataclass(frozen=True)
class Request:
    """What to evaluate of a run; empty or None means the default of `evaluate.py`."""

    message_bits: tuple[int | Literal["auto"], ...]
    keys: tuple[int | Literal["paper"], ...]
    decoders: tuple[Decoder, ...]
    knowledge: tuple[Knowledge, ...]
    surplus: tuple[Surplus, ...]
    thresholds: tuple[float, float] | None
    adaptive: AdaptiveSettings
    transmissions: int
    seed: int


def newest_run(folder: Path) -> Path:
    """The run under `folder` whose law was written last.

    Raises:
        FileNotFoundError: there is none.
    """
    laws = sorted(folder.glob("*/law.safetensors"), key=lambda path: (path.stat().st_mtime_ns, path))
    if not laws:
        raise FileNotFoundError(f"no run with a law under {folder}/: train one with train.py, or name a run folder")
    return laws[-1].parent


def load_run(run: Path) -> tuple[StateTree, JointLaw]:
    """The tree and the law of a run folder.

    Raises:
        FileNotFoundError: no such run, or no tree or law in it.
        ValueError: a damaged file, or a law of another tree.
    """
    if not run.is_dir():
        raise FileNotFoundError(f"{run}: no such run folder")
    if not (run / "tree.safetensors").exists():
        raise FileNotFoundError(f"{run} holds no run (no tree.safetensors): give the folder that train.py named")
    tree = load_tree(run / "tree.safetensors")
    return tree, load_law(run / "law.safetensors", tree)


def lengths_follow_state(run: Path) -> bool:
    """Whether the law of a run folder was planned with --message-bits auto, as its config.json says.

    Raises:
        ValueError: the configuration is damaged.
    """
    return _asked(run).message_bits == "auto"


def planned_dither(run: Path) -> int:
    """Bits of dither that the law of a run folder was planned with, as its config.json says; 0 if it says nothing.

    Raises:
        ValueError: the configuration is damaged.
    """
    return _asked(run).dither_bits


def over_budget(run: Path, law: JointLaw) -> str | None:
    """One line if the law of a run folder costs more than the epsilon in its config.json allows.

    Raises:
        ValueError: the configuration is damaged.
    """
    asked = _asked(run)
    kind = cost_of(asked.cost)
    cost = law_totals(law.blocks, asked.gamma, kind).cost
    if asked.epsilon is None or cost <= asked.epsilon + FEASIBLE:
        return None
    told = f"{cost:.4f}{kind.unit and f' {kind.unit}'}"
    return f"over its budget: the blocks cost {told} in all, and the run was allowed {asked.epsilon:g}"


def _asked(run: Path) -> _Asked:
    """What a run was started with; the defaults if the folder does not say it."""
    config = run / "config.json"
    if not config.is_file():
        return _Asked()
    settings = read_as(dict[str, Any], read_json(config).get("settings", {}), config, "settings")
    known = {field.name: settings[field.name] for field in dataclasses.fields(_Asked) if field.name in settings}
    return read_as(_Asked, known, config, "settings")


def evaluate_run(run: Path, out: Path, request: Request) -> None:
    """Evaluate the law of a run folder; prints tables, writes results.json, ber.png and tv.png to `out`.

    Raises:
        FileNotFoundError: no such run, or no tree or law in it.
        ValueError: a damaged file, a law of another tree, or a request that the law cannot meet.
        OSError: `out` cannot be written, or its live.json cannot be read.
    """
    tree, law = load_run(run)
    if not request.message_bits and lengths_follow_state(run):
        request = dataclasses.replace(request, message_bits=("auto",))
    if request.thresholds is not None:
        law = with_threshold_sets(law, *request.thresholds)
    settings = resolve(law, request)
    check_writable(out, "choose another --out")
    live = live_results(out, law)
    print(describe(tree, law))
    if (excess := over_budget(run, law)) is not None:
        print(f"law {excess}")
    if beyond := left_out(law, settings):
        pairs = ", ".join(f"{keys} at {bits} message bits" for bits, keys in beyond)
        print(f"left out, since the law has too few positions to freeze so many keys: {pairs}")
    points = evaluate(tree, law, settings)
    if not points:
        raise ValueError("no operating point is left: name fewer --keys, or --surplus dither")
    adapted = evaluate_adaptive(tree, law, request.adaptive) if "auto" in request.message_bits else None
    limits = {bits: law_limit(law, bits) for bits in settings.message_bits}
    write_json(out / "results.json", results(tree, law, points, limits, adapted, live))
    save_figure(ber_figure(points, limits, law.block_length, adapted), out / "ber.png")
    save_figure(variation_figure(points, law.block_length), out / "tv.png")
    print(f"\nWhat the columns mean\n{LEGEND}")
    if adapted is not None:
        print(f"\nMessage length by state\n{adaptive_table(adapted, law.block_length)}")
    rows, title = points, "Error rates" if adapted is None else "Error rates of fixed lengths"
    if len(points) > _ALL_ROWS:
        rows = one_key_points(points)
        title += f" with the longest key that only pads, or else the shortest ({len(rows)} of {len(points)} points)"
    print(f"\n{title}\n{error_table(rows, limits)}")
    print(f"\nTotal variation of the same points\n{covertness_table(rows)}")
    print(f"\nTotal variation, mean over messages, against the number of keys\n{variation_table(points)}")
    print(f"\nOne-shot limits at total variation budgets, states as likely as under this law\n{limit_table(limits)}")
    print(f"\n{out / 'results.json'}, ber.png, tv.png")


def resolve(law: JointLaw, request: Request) -> EvaluationSettings:
    """Fill in the defaults that depend on the law.

    Raises:
        ValueError: a message length below 1 or beyond the labels, a number of keys that is no power of two, a negative
            number of transmissions, or an empty list.
    """
    room = message_room(law)
    if room < 1:
        raise ValueError("this law carries no message bits: train it with more labels, or plan it with a larger budget")
    bits = [bits for bits in request.message_bits if bits != "auto"] or range(1, min(room, _DEFAULT_BITS) + 1)
    if min(bits) < 1 or max(bits) > room:
        raise ValueError(f"--message-bits {' '.join(map(str, bits))}: this law carries 1 to {room} bits per block")
    if request.transmissions < 0:
        raise ValueError(f"--transmissions {request.transmissions}: a number of texts is needed, 0 for none")
    check_seed(request.seed)
    for name in ("keys", "decoders", "knowledge", "surplus"):
        if not getattr(request, name):
            raise ValueError(f"{name}: name at least one")
    for keys in request.keys:
        if keys != "paper":
            key_bits_of(keys)
    paper = 1 << max(theorem_key_bits(block) for block in law.blocks)
    return EvaluationSettings(
        message_bits=tuple(sorted(set(bits))),
        keys=tuple(paper if keys == "paper" else keys for keys in request.keys),
        decoders=request.decoders,
        knowledge=request.knowledge,
        surplus=request.surplus,
        transmissions=request.transmissions,
        seed=request.seed,
    )


def with_threshold_sets(law: JointLaw, t_epsilon: float, t_delta: float) -> JointLaw:
    """The law with the message sets that the paper's thresholds select.

    Raises:
        ValueError: a threshold is no finite number, or a block has no such position.
    """
    if not (is_finite(t_epsilon) and is_finite(t_delta)):
        raise ValueError(f"--thresholds {t_epsilon:g} {t_delta:g}: finite numbers are needed")
    sets = [threshold_set(chain_entropies(block, law.block_length), t_epsilon, t_delta) for block in law.blocks]
    for number, positions in enumerate(sets, start=1):
        if not positions:
            raise ValueError(
                f"thresholds {t_epsilon:g} {t_delta:g} leave block {number} no message position: raise them"
            )
    return dataclasses.replace(law, message_sets=tuple(sets))


def describe(tree: StateTree, law: JointLaw) -> str:
    """A few lines on the tree and the uncoded law."""
    measures = [measure(block) for block in law.blocks]
    pairs = [chain_entropies(block, law.block_length) for block in law.blocks]
    children = tuple(torch.from_numpy(block.child) for block in tree.blocks[:-1])
    count, bits = len(measures), law.block_length
    lines = [
        f"tree {tree.fingerprint[:12]}: {tree.meta.model}, {tree.meta.pool} pool, {len(tree.prior)} prompts, "
        f"{tree.states} states, L = {bits}, B = {count}, Q = {tree.meta.candidates}, "
        f"H(X|S) = {average_entropy(tree):.3f} bits per block, retained mass {retained_mass(tree):.1e}",
        f"law: rate {sum(float(m.rate) for m in measures) / count / bits:.4f} bits per token, "
        f"I(U;X|S) = {sum(float(m.i_ux_given_s) for m in measures) / count:.3f} bits per block, "
        f"TV per block {' '.join(f'{float(m.cost):.4f}' for m in measures)}, "
        f"TV of the text {float(text_total_variation(law.blocks, children)):.4f}",
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
