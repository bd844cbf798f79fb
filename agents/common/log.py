"""Where the numbers of a training run go: metrics.csv, TensorBoard and perhaps a tracker, under the same names."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.utils.tensorboard.summary import hparams

from agents.common.runs import RunFolder
from agents.common.tracking import Tracker
from wm_env.common.events import EventWriter
from wm_env.common.figures import Figure, MaxNLocator, pixels
from wm_env.common.files import fingerprint, read_text, write_text
from wm_env.law import JointLaw, induced_cover

STATES_SHOWN = 60
"""States per heat map."""


@dataclass(frozen=True)
class Begun:
    """The metrics that a resumed run goes on from.

    Attributes:
        iteration: where it goes on; rows and events beyond it are dropped.
        fingerprint: `TrainingLog.fingerprint` of the rows up to there.
    """

    iteration: int
    fingerprint: str


class TrainingLog:
    """metrics.csv and the TensorBoard events of a run folder, written as the run goes on.

    Args:
        folder: the run folder.
        begun: what a resumed run goes on from; a new run begins with no rows.
        limits: numbers that TensorBoard shows as lines beside metrics, by the metric: `limit/NAME` beside `eval/NAME`.
        tracker: gets the numbers too, and is closed with the log.

    Raises:
        OSError: the folder cannot be written.
        ValueError: the metrics to go on from are missing, damaged or others than the run wrote.
    """

    def __init__(
        self,
        folder: RunFolder,
        begun: Begun | None = None,
        limits: Mapping[str, float] | None = None,
        tracker: Tracker | None = None,
    ) -> None:
        self._limits, self._tracker = dict(limits or {}), tracker
        self._path = folder.metrics
        self._rows = [] if begun is None else _rows_up_to(folder.metrics, begun)
        self._writer = EventWriter(folder.path, purge_step=None if begun is None else begun.iteration + 1)
        if self._limits and begun is None:
            charts = {name: ["Multiline", [f"eval/{name}$", f"limit/{name}$"]] for name in self._limits}
            self._writer.add_custom_scalars({"beside their limits": charts})

    def __enter__(self) -> "TrainingLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        if self._tracker is not None:
            self._tracker.close(whole=error is None)

    @property
    def last(self) -> int | None:
        """The iteration of the last row, None if there are no rows."""
        return int(self._rows[-1]["iteration"]) if self._rows else None

    @property
    def first(self) -> dict[str, float]:
        """The numbers of the first row."""
        return {name: float(value) for name, value in self._rows[0].items()}

    @property
    def fingerprint(self) -> str:
        """Of all rows so far: 64 hex digits."""
        return _fingerprint(self._rows)

    def add(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """One row: the file is written anew, so it is whole at any moment."""
        self._rows.append({"iteration": repr(iteration), **{name: repr(value) for name, value in metrics.items()}})
        columns = list(dict.fromkeys(name for row in self._rows for name in row))
        lines = [",".join(columns), *(",".join(row.get(name, "") for name in columns) for row in self._rows)]
        write_text(self._path, "\n".join(lines) + "\n")
        self._show(iteration, {**metrics, **{f"limit/{name}": value for name, value in self._limits.items()}})

    def add_laws(self, iteration: int, law: JointLaw) -> None:
        """Heat maps of P(u|s) and of P~(x|s) beside P(x|s), one figure of each per block."""
        for number, block in enumerate(law.blocks, start=1):
            rows = slice(0, STATES_SHOWN)
            tables = {
                f"block_{number}/labels": {"labels, P(u|s)": (block.p_label[rows], "label u")},
                f"block_{number}/candidates": {
                    "watermarked, P~(x|s)": (induced_cover(block)[rows], "candidate x"),
                    "the model's own, P(x|s)": (block.cover[rows], "candidate x"),
                },
            }
            shown = "state s (number)"
            if len(block.cover) > STATES_SHOWN:
                shown += f", the first {STATES_SHOWN} of {len(block.cover):,}"
            for name, panels in tables.items():
                self._writer.add_image(name, pixels(heat_maps(panels, shown)), iteration, dataformats="HWC")
        self._writer.flush()

    def add_result(self, iteration: int, settings: Mapping[str, Any], result: Mapping[str, float | None]) -> None:
        """The settings beside the numbers of the law that was saved, as `result/*`, for TensorBoard's HPARAMS tab."""
        tagged = {f"result/{name}": value for name, value in result.items() if value is not None}
        writer = self._writer._get_file_writer()
        for summary in hparams(flat_values(settings), tagged):  # type: ignore[no-untyped-call]
            writer.add_summary(summary)
        self._show(iteration, tagged)

    def _show(self, iteration: int, tagged: Mapping[str, float]) -> None:
        for name, value in tagged.items():
            self._writer.add_scalar(name, value, iteration)
        if self._tracker is not None:
            self._tracker.add(iteration, tagged)


def flat_values(values: Mapping[str, Any], before: str = "") -> dict[str, int | float | str]:
    """Nested settings as one level, learner.policy.common, of the types that TensorBoard takes."""
    flat: dict[str, int | float | str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flat_values(value, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = value if isinstance(value, int | float | str) else str(value)
    return flat


def heat_maps(panels: Mapping[str, tuple[Tensor, str]], rows: str) -> Figure:
    """Tables of probabilities side by side, states downwards, each with a colour bar of its own and all on one scale.

    `panels` says by title the table and what its columns are, `rows` what the rows are.
    """
    figure = Figure(figsize=(5.5 * len(panels), 4.5), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    highest = max(float(table.max()) for table, _ in panels.values())
    for axis, (title, (table, columns)) in zip(axes, panels.items(), strict=True):
        image = axis.imshow(table.cpu().numpy(), aspect="auto", vmin=0, vmax=highest, interpolation="nearest")
        axis.set(title=title, xlabel=f"{columns} (number)", ylabel=rows)
        for numbered in (axis.xaxis, axis.yaxis):
            numbered.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        figure.colorbar(image, ax=axis, label="probability")
    return figure


def _rows_up_to(path: Path, begun: Begun) -> list[dict[str, str]]:
    try:
        rows = list(csv.DictReader(StringIO(read_text(path), newline="")))
        if any(None in row or None in row.values() for row in rows):
            raise ValueError("a row has not as many entries as there are columns")
        # A column that began with a later row is empty before it.
        rows = [{name: value for name, value in row.items() if value} for row in rows]
        kept = [row for row in rows if int(row["iteration"]) <= begun.iteration]
        if _fingerprint(kept) != begun.fingerprint:
            raise ValueError(f"its rows up to iteration {begun.iteration} are not those that this run wrote")
        return kept
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} is missing or damaged ({error}): put it back, or start a new run") from None


def _fingerprint(rows: Sequence[Mapping[str, str]]) -> str:
    return fingerprint({}, {"rows": list(rows)})
