"""Hide a message in a text, and find it again.

    python -m polar keygen secret.key
    python -m polar embed --key secret.key --prompt-file prompt.txt --message-file message.bin > text.txt
    python -m polar decode --key secret.key --prompt-file prompt.txt text.txt > message.bin

    python -m polar detect --key secret.key text.txt

    python -m polar serve --key secret.key

With --scheme parallel and --scheme robust the receiver needs no model: text, key, settings and the model's tokenizer
are enough. `detect` and `serve` are for the scheme robust, whose texts may be edited or stand inside others; `serve`
writes and reads them over HTTP, for programs and on a page for people.

Texts and payloads go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 bad
arguments or input, such as bytes that are no text, 3 the text carries no message or is not marked, 130 interrupted.
"""

import os
import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Until the imports below are done, Ctrl-C ends the process with a line and no traceback.
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))

import sys
from pathlib import Path
from typing import Annotated

from wm_env.common.command import exit_code, is_closed, quitting_on_interrupt, run_command, tell

with quitting_on_interrupt(__name__):
    import tyro

    from polar.serve.options import Serve
    from polar.text.command_line.options import Command, Decode, Detect, Embed, Keygen, read_received
    from polar.text.keys.key import load_key, new_key, save_key
    from wm_env.common.arguments import parse

SERVE_EXTRA = ("fastapi", "fastapi_offline", "pebble", "starlette", "uvicorn")
"""Modules that come with the extra `serve`."""

DONE, NO_MESSAGE = 0, 3


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    script = Path(sys.argv[0]).name
    with quitting_on_interrupt(__name__):
        options = parse(
            Command | Annotated[Serve, tyro.conf.subcommand("serve")],
            prog=script if script.startswith("covert-") else "python -m polar",
            description=__doc__,
            args=arguments,
            config=(tyro.conf.FlagCreatePairsOff,),
        )

    def work() -> int:
        if isinstance(options, Keygen):
            return _keygen(options)
        if isinstance(options, Detect):
            return _detect(options)
        if isinstance(options, Serve):
            return _serve(options)
        return _embed(options) if isinstance(options, Embed) else _decode(options)

    if isinstance(options, Embed):
        return exit_code(work, "interrupted: no text was written, and no nonce was used")
    return exit_code(work)


def _keygen(options: Keygen) -> int:
    """Write a key file."""
    try:
        save_key(new_key(), options.file)
    except FileExistsError:
        raise ValueError(f"{options.file} exists, and keys are never overwritten: name another file") from None
    tell(f"{options.file}: a new key; keep it secret, and give it to the receiver over a safe channel")
    return DONE


# What can be refused without a model is refused before torch is imported, which takes seconds.


def _embed(options: Embed) -> int:
    """Write a text."""
    options.check()
    _check_output()
    key, message, prompt = load_key(options.key), options.read_message(), options.model.read_prompt()
    with quitting_on_interrupt(__name__):
        from polar.text.command_line.commands import import_models, run_embed

        import_models()

    run_embed(options, key, message, prompt)
    return DONE


def _decode(options: Decode) -> int:
    """Print the message of a text, if it has one."""
    options.check()
    _check_output()
    key, text = load_key(options.key), read_received(options.text_file)
    prompt = options.read_prompt()
    with quitting_on_interrupt(__name__):
        from polar.text.command_line.commands import import_models, run_decode

        if options.needs_model:
            import_models()

    return DONE if run_decode(options, key, text, prompt) else NO_MESSAGE


def _detect(options: Detect) -> int:
    """Print how sure it is that a text is marked, and where."""
    options.check()
    _check_output()
    key, text = load_key(options.key), read_received(options.text_file)
    with quitting_on_interrupt(__name__):
        from polar.text.command_line.commands import run_detect

    return DONE if run_detect(options, key, text) else NO_MESSAGE


def _serve(options: Serve) -> int:
    """Answer requests until Ctrl-C."""
    options.check()
    key = load_key(options.key)
    with quitting_on_interrupt(__name__):
        try:
            from polar.serve.command import serve
        except ModuleNotFoundError as error:
            if error.name not in SERVE_EXTRA:
                raise
            raise ValueError(f"{error.name} is missing: pip install 'covert-watermark[serve]'") from None

    serve(options, key)
    return DONE


def _check_output() -> None:
    """Raise ValueError if standard output is closed."""
    if is_closed(sys.stdout):
        raise ValueError("standard output is closed, and what this command prints would get lost: add > FILE")


if __name__ == "__main__":
    run_command(main)
