"""Marks that are read without the model, ours beside others: how many messages of 32 bits come back after edits.

    python benchmarks/marks.py write --folder runs/marks --device cuda
    python benchmarks/marks.py read --folder runs/marks --workers 8
    python benchmarks/marks.py table --folder runs/marks --figure docs/figures/marks.png
    python benchmarks/marks.py speed

See docs/marks.md.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from command import run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import tyro
    from mark_reading import measure
    from mark_schemes.registry import NAMES
    from mark_speed import writing_ratio
    from mark_tables import draw, edit_table, length_table, limit_lines, robust_table
    from mark_texts import held_out_prompts, write_texts

    from wm_env.lm.models.load import load_lm
    from wm_env.lm.prompts import read_prompts
    from wm_env.lm.text_files import read_lines


@dataclass(frozen=True)
class Write:
    """Write the texts of the marks that are missing in a folder: about two minutes on a GPU, days on a CPU."""

    folder: Path = Path("runs/marks")
    """Where texts are kept."""
    marks: tuple[str, ...] = NAMES
    """Which marks write."""
    temperatures: tuple[float, ...] = (1.0, 0.7)
    """tau."""
    texts: int = 200
    """Texts of each mark, temperature and length."""
    device: str = "cpu"
    """Where the model runs."""
    tuning: bool = False
    """Write behind the shipped prompts instead, for texts that may be tuned on."""

    def run(self) -> None:
        within(self, texts=(1, 10_000))
        check_names(self.marks)
        prompts = read_prompts("shipped") if self.tuning else held_out_prompts()
        write_texts(self.folder, self.marks, self.temperatures, self.texts, self.device, prompts)


@dataclass(frozen=True)
class Read:
    """Edit and read the texts of a folder, without the model; rows that are kept there are not measured again."""

    folder: Path = Path("runs/marks")
    """Where texts and rows are kept."""
    marks: tuple[str, ...] = NAMES[:-1]
    """Which marks are read."""
    temperatures: tuple[float, ...] = (1.0, 0.7)
    """tau."""
    texts: int = 200
    """Texts of each row."""
    human: Path | None = None
    """Text that people wrote, for false positives; the shipped prompts by default. May be compressed (.gz, .xz)."""
    workers: int = 1
    """Processes."""

    def run(self) -> None:
        within(self, texts=(1, 10_000), workers=(1, 256))
        check_names(self.marks)
        human = " ".join(read_lines(self.human) if self.human else read_prompts("shipped"))
        measure(self.folder, self.marks, self.temperatures, self.texts, human, self.workers)


@dataclass(frozen=True)
class Table:
    """Print the tables of a folder, and draw the figure."""

    folder: Path = Path("runs/marks")
    """Where texts and rows are kept."""
    figure: Path | None = None
    """Where the figure goes, such as docs/figures/marks.png; none by default."""

    def run(self) -> None:
        print(robust_table(self.folder), limit_lines(self.folder), sep="\n\n")
        for temperature in (1.0, 0.7):
            print("", length_table(self.folder, temperature), "", edit_table(self.folder, temperature), sep="\n")
        if self.figure:
            draw(self.folder, self.figure)


@dataclass(frozen=True)
class Speed:
    """Time of writing with each mark over that of plain sampling, on this machine, one text at a time."""

    marks: tuple[str, ...] = NAMES[:-1]
    """Which marks write."""
    tokens: int = 64
    """Tokens of a text."""
    rounds: int = 5
    """Texts of each mark, and as many plain ones."""
    temperature: float = 1.0
    """tau."""
    arithmetic: Literal["exact", "float"] = "float"
    """Of the model; passes in floats are shorter, so the share of the mark is larger."""

    def run(self) -> None:
        within(self, tokens=(1, 300), rounds=(1, 200))
        check_names(self.marks)
        lm = load_lm("mini", arithmetic=self.arithmetic)
        for name in self.marks:
            ratio = writing_ratio(lm, name, self.temperature, self.tokens, self.rounds)
            print(f"{name}: {100 * (ratio - 1):+.1f} % over plain sampling", flush=True)


def check_names(names: tuple[str, ...]) -> None:
    """Check names of marks."""
    if unknown := set(names) - set(NAMES):
        raise ValueError(f"--marks {' '.join(sorted(unknown))}: the marks are {', '.join(NAMES)}")


def main() -> None:
    tyro.extras.subcommand_cli_from_dict(
        {"write": Write, "read": Read, "table": Table, "speed": Speed}, description=__doc__
    ).run()


if __name__ == "__main__":
    run_benchmark(main)
