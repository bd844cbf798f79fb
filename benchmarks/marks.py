"""Marks that are read without the model, ours beside others: how many messages of 32 bits come back after edits.

    python benchmarks/marks.py write --folder runs/marks --device cuda

See docs/marks.md.
"""

from dataclasses import dataclass
from pathlib import Path

from command import run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import tyro
    from mark_schemes.registry import NAMES
    from mark_texts import write_texts


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

    def run(self) -> None:
        within(self, texts=(1, 10_000))
        if unknown := set(self.marks) - set(NAMES):
            raise ValueError(f"--marks {' '.join(sorted(unknown))}: the marks are {', '.join(NAMES)}")
        write_texts(self.folder, self.marks, self.temperatures, self.texts, self.device)


def main() -> None:
    tyro.extras.subcommand_cli_from_dict({"write": Write}, description=__doc__).run()


if __name__ == "__main__":
    run_benchmark(main)
