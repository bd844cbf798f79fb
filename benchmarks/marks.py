"""Marks that are read without the model, ours beside others: how many messages of 32 bits come back after edits.

    python benchmarks/marks.py write --folder runs/marks --device cuda
    python benchmarks/marks.py read --folder runs/marks --workers 8

See docs/marks.md.
"""

from dataclasses import dataclass
from pathlib import Path

from command import run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import tyro
    from mark_reading import measure
    from mark_schemes.registry import NAMES
    from mark_texts import held_out_prompts, write_texts

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


def check_names(names: tuple[str, ...]) -> None:
    """Check names of marks."""
    if unknown := set(names) - set(NAMES):
        raise ValueError(f"--marks {' '.join(sorted(unknown))}: the marks are {', '.join(NAMES)}")


def main() -> None:
    tyro.extras.subcommand_cli_from_dict({"write": Write, "read": Read}, description=__doc__).run()


if __name__ == "__main__":
    run_benchmark(main)
