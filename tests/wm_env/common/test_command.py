"""How commands begin and end, in processes of their own."""

import contextlib
import errno
import os
import signal
import subprocess
import sys

import pytest
from repository import ROOT

from polar.text.keys.key import Key, save_key
from wm_env.common.command import is_closed, is_system_failure, is_terminal, quitting_on_interrupt, tell, tell_failure

COMMANDS = {
    "train": ["train.py"],
    "evaluate": ["evaluate.py"],
    "frontier": ["-m", "agents.frontier", "never"],
    "pretrain": ["-m", "wm_env.lm.pretrain", "--texts", "never", "--out", "never"],
    "polar": ["-m", "polar", "embed", "--key", "KEY", "--prompt", "a", "--message", "x"],
    "quality": ["-m", "wm_env.lm.quality", "mini"],
    "capacity": ["-m", "wm_env.theory.capacity", "pairs"],
    "build": ["-m", "wm_env.lm.build", "--out", "never.safetensors"],
}


def buffered():
    """The environment, with standard output as most people have it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def shell(redirection, *arguments):
    """A Python command under a shell's redirection."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=buffered(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def shell_main(redirection, *lines):
    """A command whose `main` has these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return shell(
        redirection, "-c", f"import os, sys\nfrom wm_env.common.command import *\ndef main():\n{body}run_command(main)"
    )


@pytest.mark.parametrize(
    ("name", "library"),
    [(name, library) for name in COMMANDS for library in ("torch", "gymnasium")],
)
def test_an_import_is_interrupted_with_one_line(tmp_path, name, library):
    command = COMMANDS[name]
    # An import that tells when it is under way, and takes long; gymnasium is the first library of all.
    (tmp_path / f"{library}.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(120)\n")
    save_key(Key(bytes(range(32))), tmp_path / "KEY")
    given = [str(tmp_path / word) if word == "KEY" else word for word in command]
    with subprocess.Popen(
        [sys.executable, *given],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"]))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate()
    assert (process.returncode, out, errors) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    "command",
    [["train.py"], ["-m", "polar", "embed"], ["-m", "wm_env.theory.capacity"], ["-m", "wm_env.lm.build"]],
)
def test_a_help_that_nobody_reads_is_no_error(command):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, *command, "--help"],
        cwd=ROOT,
        env=buffered(),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("error", [None, ImportError("a library is missing")])
def test_the_usual_handler_comes_back(error):
    with contextlib.suppress(ImportError), quitting_on_interrupt("__main__"):
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        if error is not None:
            raise error
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_imports_a_module_keeps_the_handler():
    with quitting_on_interrupt("wm_env.lm.build"):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with quitting_on_interrupt("__main__"):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_failures_of_the_system_are_told_from_refusals(tmp_path):
    for number in (errno.ENOSPC, errno.EPIPE, errno.EIO, errno.ENOMEM):
        assert is_system_failure(OSError(number, os.strerror(number)))
    with pytest.raises(OSError) as caught:  # noqa: PT011
        (tmp_path / "none").read_bytes()
    for error in (caught.value, OSError("a refusal"), PermissionError(errno.EACCES, "x"), ValueError("x")):
        assert not is_system_failure(error)


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path):
    done = shell_main(
        "<&- >&- 2>&-",
        f"file = open({str(tmp_path / 'file')!r}, 'w')",
        "os.write(1, b'1'), os.write(2, b'2')",
        "print('out'), print('err', file=sys.stderr)",
        "file.write(f'{file.fileno() > 2} {sys.stdin.read()!r} {[is_closed(s) for s in (sys.stdin, sys.stdout)]}')",
        "return 5",
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "")
    assert (tmp_path / "file").read_text() == "True '' [True, True]"


def test_streams_that_are_open_stay_as_they_are():
    done = shell_main("", "print(is_closed(sys.stdin), is_closed(sys.stdout), is_closed(sys.stderr))", "return 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False False False\n", "")
    assert shell_main("> /dev/null", "return int(is_closed(sys.stdout))").returncode == 0


@pytest.mark.parametrize("command", [["-m", "wm_env.theory.capacity"], ["-m", "polar"], ["evaluate.py"]])
def test_a_help_to_a_closed_stream(command):
    done = shell(">&-", *command, "--help")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("redirection", "arguments", "says"),
    [
        (">&-", ["embed", "--message", "x"], "standard output is closed"),
        (">&-", ["decode", "KEY"], "standard output is closed"),
        ("<&-", ["embed", "--message-file", "-"], "standard input is closed"),
        ("<&-", ["decode", "-"], "standard input is closed"),
    ],
)
def test_texts_and_messages_need_their_stream(tmp_path, redirection, arguments, says):
    key = tmp_path / "KEY"
    save_key(Key(bytes(range(32))), key)
    given = [key if word == "KEY" else word for word in arguments]
    done = shell(redirection, "-m", "polar", *given, "--key", key, "--prompt", "a")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {says}")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["KEY"]


def test_training_goes_on_without_anyone_to_tell(small_tree_file, tmp_path):
    small = ["--tree", small_tree_file, "--labels", "8", "--candidates", "5", "--prompts", "3", "--iterations", "20"]
    done = shell("<&- >&- 2>&-", "train.py", "--preset", "smoke", *small, "--run", tmp_path / "run")
    assert done.returncode == 0
    assert (tmp_path / "run" / "law.safetensors").is_file()


def test_output_that_cannot_be_written():
    done = shell_main("> /dev/full", "print('x')", "return 0")
    assert (done.returncode, done.stderr) == (1, "error: No space left on device: make room, or name another place\n")
    done = shell_main("> /dev/full", "print('x')", "return 3")
    assert (done.returncode, done.stderr) == (3, "")
    done = shell_main("2> /dev/full", "tell('x'), tell('y'), print('out')", "return 4")
    assert (done.returncode, done.stdout) == (4, "out\n")
    done = shell_main("| true", "import time; time.sleep(1)", "print('x' * 100)", "return 0")
    assert done.stderr == ""


def test_the_help_and_wrong_words_of_a_command_line(monkeypatch):
    """The help has letters that ASCII lacks; a wrong word may be anything."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = shell("", "-m", "polar", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for command in (["train.py", "--preset"], ["-m", "polar", "decode"], ["-m", "wm_env.theory.capacity"]):
        done = shell("", *command, "\x1b]0;owned\x07\x9b\u202e")
        assert done.returncode == 2
        assert not set("\x1b\x07\x9b\u202e") & set(done.stderr)


def test_lines_of_a_command_show_what_is_in_them(monkeypatch):
    done = shell_main("", r"tell('a\x1b\nb'), say('a\x1b\nb')", "return 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\\x1b\nb\n", "a\\x1b\\nb\n")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = shell_main("", r"say('\u6c34'), print('\u6c34')", "return 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u6c34\n" * 2, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_current_folder_that_was_removed_is_told_in_one_line(name, tmp_path):
    (tmp_path / "gone").mkdir()
    first, *rest = COMMANDS[name]
    words = [str(ROOT / first) if first.endswith(".py") else first, *rest]
    done = subprocess.run(
        ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', tmp_path / "gone", sys.executable, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    line = "error: the current folder has been removed: change to one that is there\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_how_a_command_ends():
    assert shell_main("", "sys.exit(7)").returncode == 7
    assert shell_main("", "sys.exit()").returncode == 0
    done = shell_main("", "raise KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    late = "import atexit, signal; atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))"
    done = shell_main("", late, "print('done')", "return 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_no_stream_is_no_terminal(monkeypatch, capsys):
    assert not is_terminal(None)
    assert is_closed(None)
    monkeypatch.setattr(sys, "stderr", None)
    tell("nothing")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        (errno.ENAMETOOLONG, 2, "error: place: File name too long\n"),
        (errno.ENOENT, 2, "error: place: No such file or directory\n"),
        (errno.EIO, 1, "error: place: Input/output error\n"),
        (errno.ENOSPC, 1, "error: place: No space left on device: make room, or name another place\n"),
    ],
)
def test_what_the_system_says_is_told_without_its_number(capsys, number, code, says):
    assert tell_failure(OSError(number, os.strerror(number), "place")) == code
    assert capsys.readouterr().err == says


def test_names_that_are_too_long(tmp_path):
    done = shell("", "-m", "polar", "keygen", tmp_path / ("a" * 300))
    assert done.returncode == 2
    assert done.stderr.endswith("File name too long\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    "command", [["train.py"], ["evaluate.py"], ["-m", "polar", "keygen"], ["-m", "wm_env.lm.build"]]
)
def test_a_help_that_does_not_fit_on_a_disk(command):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, *command, "--help"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left on device")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("columns", ["0", "1", "2"])
def test_a_help_in_a_narrow_window_ends(columns):
    done = subprocess.run(
        [sys.executable, "-m", "polar", "keygen", "--help"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": columns},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_settings_of_tqdm_are_not_obeyed(tmp_path):
    save_key(Key(bytes(range(32))), tmp_path / "a.key")
    done = subprocess.run(
        [sys.executable, "-m", "polar", "detect", "--key", tmp_path / "a.key", ROOT / "LICENSE"],
        cwd=ROOT,
        env={**os.environ, "TQDM_MININTERVAL": "abc", "TQDM_DISABLE": "xyz", "TQDM_NCOLS": "abc"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
