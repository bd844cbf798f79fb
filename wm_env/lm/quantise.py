"""Write a model as integers: 8-bit weights, half the size of a 16-bit checkpoint, for exact arithmetic.

    python -m wm_env.lm.quantise GSAI-ML/LLaDA-8B-Base models/llada-8b-int8
    python -m wm_env.lm.build --model models/llada-8b-int8 --device cuda --out tree.safetensors

Matrices are read, rounded and written one at a time. The integer model is a model of its own, with a fingerprint of its
own: sender and receiver both need it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wm_env.common.command import exit_code, quitting_on_interrupt, run_command, say

with quitting_on_interrupt(__name__):
    import tyro

    from wm_env.common.arguments import parse
    from wm_env.common.help import paragraph_help
    from wm_env.lm.models.exact.weights import form_named
    from wm_env.lm.models.load import write_integer_model


@paragraph_help
@dataclass(frozen=True)
class Options:
    """Write a model as integers."""

    model: tyro.conf.Positional[str]
    """mini, the folder of a checkpoint of LLaDA or Dream, or a hub id."""
    out: tyro.conf.Positional[Path]
    """A folder that does not exist yet."""
    form: Literal["w8", "w24"] = "w8"
    """w8: 8-bit weights. w24: 24-bit weights, stored in 32 bits, for networks less than 2,048 wide."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: exit code 0 when done, 2 for bad arguments or input, 130 after Ctrl-C."""
    with quitting_on_interrupt(__name__):
        options = parse(Options, prog="python -m wm_env.lm.quantise", description=__doc__, args=arguments)

    def work() -> None:
        files = write_integer_model(options.model, options.out, form_named(options.form))
        say(f"{options.out}: {len(files)} file(s) of tensors, {sum(file.stat().st_size for file in files):,} bytes")

    return exit_code(work)


if __name__ == "__main__":
    run_command(main)
