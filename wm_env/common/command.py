"""How commands begin and end: standard streams, exit codes, and one line for Ctrl-C and for failures."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.abc import SourceLoader
from importlib.util import find_spec, module_from_spec
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn, TextIO

from wm_env.common.foreign.imports import failed_import, variable_to_blame
from wm_env.common.foreign.visible import visible

INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a command that Ctrl-C ended, as a shell expects it."""


def run_command(main: Callable[[], int]) -> NoReturn:
    """Run a command and end the process with the exit code that `main` returns, or raises as SystemExit.

    Standard streams that the caller closed are opened on the null device first: otherwise the next file that is opened
    takes the place of one, and Python has None for it. What the encoding of the output does not have is spelt out, in
    the help and in what libraries print too, since finished work must not end as an error. Before the end all output is
    written. That nobody reads it to its end, as with `| head`, is no error; that the disk is full is one. Ctrl-C no
    longer changes what has ended.
    """
    _open_streams()
    try:
        code: int | str | None = main()
    except SystemExit as stop:
        code = stop.code
    except KeyboardInterrupt:
        tell("interrupted")
        code = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sys.stdout.flush()
    except OSError as error:
        silence_output()
        if not code and not isinstance(error, BrokenPipeError):
            code = tell_failure(error)
    sys.exit(code)


def _open_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (open to the end of the process)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def is_closed(stream: TextIO | None) -> bool:
    """Whether the caller closed this standard stream: what is written there is lost, and there is nothing to read."""
    return stream is None or getattr(stream, "name", None) == os.devnull


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream, None if it is closed, is a terminal."""
    return stream is not None and stream.isatty()


def tell(line: str) -> None:
    """Print a line for people on standard error, at once; where it cannot be written, the work goes on untold.

    What a terminal would take for a command or a line end is spelt out, as by `visible`: a line may name what others
    have named.
    """
    if sys.stderr is None:
        return
    try:
        print(visible(line), file=sys.stderr, flush=True)
    except OSError:
        _silence(sys.stderr)


def say(text: str) -> None:
    """Print a line or a table on standard output, at once; once nobody reads any more, as after `| head`, nothing.

    What a terminal would take for a command is spelt out, as by `visible`, but for line ends; and so is what the
    encoding of the output does not have, as in \\u6c34.
    """
    try:
        show(text)
    except BrokenPipeError:
        silence_output()


def show(text: str) -> None:
    """As `say`, for a command whose output is all that it makes: once nobody reads any more, its work is over.

    Raises:
        BrokenPipeError: nobody reads, which `exit_code` takes for the end.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(visible(text, kept="\n").encode(encoding, "backslashreplace").decode(encoding), flush=True)


def silence_output() -> None:
    """Let what is printed from now on vanish, once who read it has gone, as `| head` does.

    Python would write the rest at exit, and complain once more.
    """
    _silence(sys.stdout)


def _silence(stream: TextIO) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


_LEAST_COLUMNS = 20
"""Of a help."""


@contextmanager
def quitting_on_interrupt(module: str) -> Iterator[None]:
    """Within the context Ctrl-C ends the process at once, if `module`, the caller's `__name__`, is run as a command.

    The environment of the command is settled too. Matplotlib needs no backend, the bar no settings, and a help some
    columns, without which the library that draws it never ends. Threads of OpenMP that wait sleep, since threads that
    spin take the core from the other thread where cores are shared. A current folder that has been removed is refused.

    Made for imports, where there is nothing to clean up: Python's KeyboardInterrupt comes out of the middle of an
    import as a long traceback, or as another error of the library. Where Ctrl-C is ignored, it stays so. A help that
    nobody reads to its end is no error; one that does not fit on a disk is one, of one line, and so is a library that
    cannot be imported.
    """
    if module != "__main__":
        yield
        return
    for name in [name for name in os.environ if name == "MPLBACKEND" or name.startswith("TQDM_")]:
        del os.environ[name]
    _check_current_folder()
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and 0 < int(columns) < _LEAST_COLUMNS:  # 0 says that the width is not known
        os.environ["COLUMNS"] = str(_LEAST_COLUMNS)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    quits = signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None)
    if quits:
        signal.signal(signal.SIGINT, _quit)
    try:
        yield
    except BrokenPipeError:
        # The help is printed within the context.
        silence_output()
        sys.exit(0)
    except Exception as error:
        if (refused := _refused_import(error)) is not None:
            sys.exit(tell_failure(refused))
        if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
            raise
        silence_output()
        sys.exit(tell_failure(error))
    finally:
        if quits:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _check_current_folder() -> None:
    """End the process with one line if its current folder has been removed: a library of torch would abort it."""
    try:
        os.getcwd()
    except OSError:
        sys.exit(tell_failure(ValueError("the current folder has been removed: change to one that is there")))


class WorkFailedError(RuntimeError):
    """The work of a command failed, and its input was not the reason: one line and exit code 1."""


def exit_code(work: Callable[[], int | None], on_interrupt: str = "interrupted") -> int:
    """Do the work of a command; returns the exit code: its own or 0, 1 failed, 2 bad input, 130 interrupted.

    That nobody reads printed lines to their end, as with `| head`, is no error. It is one for what must reach its
    reader: a writer of such output names the stream in the error, as `wm_env.common.files.naming` does.

    Args:
        work: what the command does once its options are known.
        on_interrupt: the line that tells of Ctrl-C, if the KeyboardInterrupt brings none.
    """
    try:
        return work() or 0
    except Exception as error:
        if (refused := _refused_import(error)) is not None:
            return tell_failure(refused)
        if not isinstance(error, ValueError | OSError | WorkFailedError):
            raise
        if isinstance(error, BrokenPipeError) and error.filename is None:
            silence_output()
            return 0
        return tell_failure(error)
    except KeyboardInterrupt as stop:
        tell(f"interrupted: {stop}" if str(stop) else on_interrupt)
        return INTERRUPTED


def _refused_import(error: Exception) -> Exception | None:
    """What to tell of an error that came out of the import of a library; None if it came from elsewhere.

    A variable of the environment that the library cannot read is bad input. It is named only if the library can be
    imported without it.
    """
    if (module := failed_import(error)) is None:
        return None
    library, reason = module.partition(".")[0], (reason_of(error).strip().splitlines() or [type(error).__name__])[0]
    if (name := variable_to_blame(module)) is not None:
        return ValueError(f"{name} keeps {library} from being imported ({reason}): unset it, or correct it")
    return WorkFailedError(f"{library} cannot be imported: {reason}")


def run_module(name: str) -> None:
    """Run a module as `python -m NAME` does, but with `sys.argv` as it is; of a package, name the module `__main__`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the module has been imported, Ctrl-C ends the process with a line and no traceback.
        signal.signal(signal.SIGINT, _quit)
    spec = find_spec(name)
    assert spec is not None
    assert isinstance(spec.loader, SourceLoader)
    module = module_from_spec(spec)
    module.__name__ = "__main__"
    sys.modules["__main__"] = module
    code = spec.loader.get_code(name)
    assert code is not None
    exec(code, module.__dict__)


def tell_failure(error: Exception) -> int:
    """Print what ended a command as one line on standard error; returns the exit code: 1 failed, 2 bad input."""
    tell(f"error: {reason_of(error)}")
    return 1 if is_system_failure(error) else 2


def reason_of(error: Exception) -> str:
    """What an error says; if it comes from the operating system, in words, with the path and without its number."""
    if not isinstance(error, OSError) or error.errno is None or error.strerror is None:
        return str(error)
    place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"{place}{error.strerror}{': make room, or name another place' if full else ''}"


def is_system_failure(error: Exception) -> bool:
    """Whether `error` is neither bad input nor our own refusal of it, but failed work, a full disk, a closed pipe.

    What the operating system says has a number (errno); most paths that are wrong have a class of their own.
    """
    if isinstance(error, WorkFailedError):
        return True
    if not isinstance(error, OSError) or error.errno in (None, errno.ENAMETOOLONG, errno.ELOOP):
        return False
    wrong_path = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
    return not isinstance(error, wrong_path)


def _quit(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
