"""Build a state tree: a language model and prompts in, one file out.

    python -m wm_env.lm.build --model mini --prompts shipped --prompt-count 50 --out runs/tree.safetensors
    torchrun --nproc-per-node 4 -m wm_env.lm.build --model DIR --device cuda --dtype bfloat16 --out tree.safetensors

The cost is told first; `--dry-run` stops there. A build that was killed goes on where it stopped when the same command
is given again: finished batches are in a folder beside the output until the tree is written. Under torchrun all
processes take batches until none is left, on one machine or, with the output in a shared folder, on several; the tree
is the one that a single process builds.
"""

from collections.abc import Sequence

from wm_env.common.command import exit_code, quitting_on_interrupt, run_command
from wm_env.lm.torchrun import world_size

with quitting_on_interrupt(__name__):
    from wm_env.common.arguments import parse
    from wm_env.lm.build.options import BuildOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: exit code 0 when done, 1 if the build fails, 2 for bad options or input, 130 after Ctrl-C."""
    with quitting_on_interrupt(__name__):
        options = parse(BuildOptions, prog="python -m wm_env.lm.build", description=__doc__, args=arguments)

    def work() -> int:
        # Before the seconds that torch takes; the processes of torchrun agree on who complains.
        if world_size() == 1:
            options.check()
        with quitting_on_interrupt(__name__):
            from wm_env.lm.build.builder import run_build
        return run_build(options)

    return exit_code(work, "interrupted: give the same command again to go on")


if __name__ == "__main__":
    run_command(main)
