"""Lines of progress on the standard output."""

from wm_env.common.command import silence_output


def say(line: str) -> None:
    """Print a line at once; once nobody reads any more, as after `| head`, print nothing: the run goes on."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        silence_output()
