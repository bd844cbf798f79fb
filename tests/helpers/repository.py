"""Where the checkout under test is, and its documents."""

from pathlib import Path

ROOT = Path(__file__).parents[2]

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
