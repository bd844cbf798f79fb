"""Plain tables for a terminal, and how figures are written in them."""

from collections.abc import Sequence


def aligned_table(rows: Sequence[Sequence[str]]) -> str:
    """Right-aligned columns, two spaces apart."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def or_dash(value: float | None) -> str:
    """A figure with four decimals, or a dash where there is none."""
    return "-" if value is None else f"{value:.4f}"


def with_interval(value: float, interval: tuple[float, float], spec: str = ".4f", spec_of_ends: str = "") -> str:
    """A figure with its interval in brackets; `spec` formats both, `spec_of_ends` the interval if it is given."""
    low, high = (format(end, spec_of_ends or spec) for end in interval)
    return f"{value:{spec}} [{low}, {high}]"
