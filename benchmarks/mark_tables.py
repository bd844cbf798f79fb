"""Tables and figures of the marks from the rows of a folder."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mark_edits import EDIT_BY_NAME, EDITS, Edit
from mark_limits import least_tokens, limit
from mark_reading import ROWS, Row, human_path, read_row, row_path
from mark_schemes.registry import NAMES
from mark_texts import LENGTHS, MarkText, marks, read_texts

from wm_env.common.figures import COLOURS, new_figure, save_figure

MEASURED = NAMES[:-1]
CURVE = ("none", "5 % replaced", "10 % replaced", "20 % replaced", "30 % replaced", "40 % replaced")


def row(folder: Path, name: str, temperature: float, length: int, edit: str) -> Row | None:
    """A row, None if it was not measured."""
    path = row_path(folder, name, temperature, length, edit)
    return read_row(path) if path.exists() else None


def percent(values: Sequence[float]) -> str:
    """The mean of numbers as per cent."""
    return f"{100 * float(np.mean(values)):.1f} %"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def edited_limit(texts: Sequence[MarkText], length: int, edit: Edit) -> float:
    """The limit of a receiver that knows where each word stood.

    Deleted and cut words are gone, added ones are seen through; of the paraphrase, tokens at random places are others.
    """
    kept = round(length * (1 - edit.deleted) * (1 - edit.cropped))
    return limit([text.first(kept) for text in texts], 0.3 if edit.paraphrased else edit.replaced)


def edit_table(folder: Path, temperature: float) -> str:
    """Exact messages of every mark after every edit, at 200 tokens."""
    plain = list(read_texts(folder, "plain", temperature, LENGTHS[-1]))
    lines = []
    for name in MEASURED:
        found = [row(folder, name, temperature, 200, edit.name) for edit in EDITS]
        lines.append([name, *("" if each is None else percent(each.right) for each in found)])
    lines.append(["model-free limit", *(percent([edited_limit(plain, 200, edit)]) for edit in EDITS)])
    return markdown([f"200 tokens, temperature {temperature:g}", *(edit.name for edit in EDITS)], lines)


def length_table(folder: Path, temperature: float) -> str:
    """Exact messages and bit accuracy without edits by number of tokens, detection, and speed."""
    head = [f"temperature {temperature:g}", *(f"{length} tokens" for length in LENGTHS)]
    head += ["bits right, 200 tokens", "texts", "total variation of a token", "found at 1 % of human text"]
    head += ["found after 20 % replaced", "reading, tokens/s"]
    lines = []
    for name in MEASURED:
        found = [row(folder, name, temperature, length, "none") for length in LENGTHS]
        line = [name, *("" if each is None else percent(each.right) for each in found)]
        middle, later = found[1], row(folder, name, temperature, 200, "20 % replaced")
        if middle is not None:
            variation = np.mean([text.variation for text in read_texts(folder, name, temperature, 200)])
            line += [
                percent(middle.bits),
                str(len(middle.right)),
                "0" if marks()[name].unbiased else f"{variation:.2f}",
            ]
            scores = human_scores(folder, name)
            threshold = np.quantile(scores, 0.99) if scores else np.inf
            line += [
                percent([score > threshold for score in each.score]) if each and scores else ""
                for each in (middle, later)
            ]
            line.append(f"{200 / np.median(middle.seconds):,.0f}")
        lines.append(line)
    plain = list(read_texts(folder, "plain", temperature, LENGTHS[-1]))
    lines.append(["model-free limit", *(percent([edited_limit(plain, n, EDIT_BY_NAME["none"])]) for n in LENGTHS)])
    return markdown(head, [line + [""] * (len(head) - len(line)) for line in lines])


def human_scores(folder: Path, name: str) -> list[float]:
    """Scores of windows of human text, empty if they were not measured."""
    path = human_path(folder, name)
    scores: list[float] = json.loads(path.read_text()) if path.exists() else []
    return scores


def robust_table(folder: Path) -> str:
    """All rows of the scheme `robust`, with the limit beside."""
    lines = []
    for temperature in (1.0, 0.7):
        plain = list(read_texts(folder, "plain", temperature, LENGTHS[-1]))
        for length, edit in ROWS:
            found = row(folder, "robust", temperature, length, edit.name)
            if found is None:
                continue
            times = 1e3 * np.array(found.seconds)
            line = [str(length), edit.name, f"{temperature:g}", percent(found.right), str(len(found.right))]
            line += [str(sum(found.wrong)), percent([edited_limit(plain, length, edit)])]
            line += [f"{np.median(times):.0f}", f"{np.mean(times):.0f}", f"{np.mean(found.attempts):.0f}"]
            line.append(f"{np.median(found.overlap):.2f}" if edit.inside else "")
            lines.append(line)
    head = ["tokens", "edit", "temperature", "exact", "texts", "wrong", "model-free limit", "CPU ms, median", "mean"]
    return markdown([*head, "attempts, mean", "overlap, median"], lines)


def limit_lines(folder: Path) -> str:
    """How many tokens the limit needs."""
    lines = []
    for temperature in (1.0, 0.7):
        plain = list(read_texts(folder, "plain", temperature, LENGTHS[-1]))
        entropy = np.mean([text.entropy for text in plain])
        least = least_tokens(plain, 0.99)
        lines.append(
            f"temperature {temperature:g}: {entropy:.2f} bits of entropy a token; the model-free limit carries payload "
            f"and check in 99 % of the texts from {least} tokens on"
        )
    return "\n".join(lines)


def draw(folder: Path, path: Path) -> None:
    """Exact messages against the share of replaced words, for both temperatures."""
    figure, axes = new_figure("", 2)
    shares = [100 * EDIT_BY_NAME[name].replaced for name in CURVE]
    for axis, temperature in zip(axes, (1.0, 0.7), strict=True):
        plain = list(read_texts(folder, "plain", temperature, LENGTHS[-1]))
        limits = [100 * edited_limit(plain, 200, EDIT_BY_NAME[name]) for name in CURVE]
        axis.plot(shares, limits, color="black", linestyle=":", label="model-free limit")
        for number, name in enumerate(MEASURED):
            found = [row(folder, name, temperature, 200, edit) for edit in CURVE]
            exact = [np.nan if each is None else 100 * float(np.mean(each.right)) for each in found]
            axis.plot(shares, exact, marker="o", color=COLOURS[number % len(COLOURS)], label=name)
        axis.set_xlabel("words replaced, %")
        axis.set_ylabel("messages of 32 bits read exactly, %")
        axis.set_title(f"200 tokens, temperature {temperature:g}", fontsize=10)
        axis.set_ylim(-2, 102)
    axes[0].legend(fontsize=7)
    save_figure(figure, path)
