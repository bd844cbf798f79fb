import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from ascii_lm import write_ascii_lm
from repository import ROOT

from polar.__main__ import main
from polar.text import embedding, records
from polar.text.command_line import commands, output
from polar.text.command_line.options import MOST_PROMPT, read_input
from polar.text.embedding import embed_with_retries
from polar.text.framing import BitString, parse_bits
from polar.text.keys.key import Key, load_key, save_key
from polar.text.keys.ledger import NonceLedger, ledger_beside, open_ledger
from polar.text.keys.received import Seen, note_seen, read_seen, seen_beside
from wm_env.common import progress
from wm_env.common.command import WorkFailedError
from wm_env.common.files import MOST_BYTES


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_ascii_lm(tmp_path_factory.mktemp("lm")))


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "secret.key"
    save_key(Key(bytes(range(32))), path)
    return path


@pytest.fixture
def run(capsysbinary):
    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return run


def test_files_in_and_out(run, key, model, tmp_path):
    prompt, message, text = tmp_path / "prompt.txt", tmp_path / "message.bin", tmp_path / "text.txt"
    prompt.write_bytes(b"the year\r\n")
    message.write_bytes(b"\x00\xff\r\nmessage")
    options = ("--key", key, "--prompt-file", prompt, "--model", model)
    code, out, err = run("embed", *options, "--message-file", message)
    assert code == 0
    assert "nonce 0: 88 bits, 128 with the check" in err
    assert "exactly the model's law" in err
    text.write_bytes(out)
    code, out, err = run("decode", *options, text)
    assert (code, out) == (0, message.read_bytes())
    assert "nonce 0, p-value" in err


def test_block_scheme_bits_and_law(run, key, model, tmp_path, monkeypatch):
    law = tmp_path / "text.safetensors"
    small = ("--scheme", "block", "--block-length", 4, "--candidates", 16)
    code, text, err = run(
        "embed", "--key", key, "--model", model, "--prompt", "", "--message-bits", "0110", *small, "--record", law
    )
    assert code == 0
    assert "fingerprint" in err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run("decode", "--key", key, "--record", law, "-")[:2] == (0, b"0110")
    for wrong in (("--prompt", "other"), ("--nonce", 3)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        code, out, err = run("decode", "--key", key, "--record", law, *wrong, "-")
        assert (code, out) == (2, b"")
        assert "fingerprint" in err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"other text")))
    code, out, err = run("decode", "--key", key, "--record", law, "-")
    assert (code, out) == (3, b"")
    assert "was made for another text" in err


@pytest.mark.parametrize("command", [["detect"], ["decode", "--scheme", "robust"]])
def test_ctrl_c_in_a_reader_says_nothing_of_nonces(run, key, tmp_path, monkeypatch, command):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_tokenizer", stop)
    (tmp_path / "text").write_text("a b c")
    assert run(*command, "--key", key, tmp_path / "text") == (130, b"", "interrupted\n")


@pytest.mark.parametrize("option", ["--record", "--ledger"])
def test_a_pipe_in_the_place_of_a_file_is_refused(run, key, tmp_path, option):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("a b c")
    code, out, err = run("decode", "--key", key, "--scheme", "robust", option, tmp_path / "pipe", tmp_path / "text")
    assert (code, out) == (2, b"")
    assert re.fullmatch(f"error: {tmp_path / 'pipe'} is .*a pipe: name .*\n", err)


def test_no_message_is_exit_code_3(run, key, model, tmp_path):
    text = tmp_path / "plain.txt"
    text.write_bytes(b"the they there")
    code, out, err = run("decode", "--key", key, "--model", model, "--prompt", "a", text)
    assert (code, out) == (3, b"")
    assert "no message" in err
    assert "p-value 1" in err


def test_nonces_are_counted_and_not_reused(run, key, model):
    options = ("embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x")
    assert "nonce 0" in run(*options)[2]
    assert "nonce 1" in run(*options)[2]
    assert "nonce 7" in run(*options, "--nonce", 7)[2]
    code, out, err = run(*options, "--nonce", 1)
    assert (code, out) == (2, b"")
    assert "nonce 1 was used with this key: the next free one is 2" in err
    assert run(*options, "--nonce", 1, "--allow-nonce-reuse")[0] == 0
    ledger = json.loads(key.with_name(key.name + ".nonces").read_text())
    assert ledger["used"] == [0, 1, 7]


def test_a_nonce_that_the_receiver_does_not_try_is_told(run, key, model, tmp_path):
    """Both ends do without --nonce for the first 128 messages of a key; for the next they are told what to do."""
    options = ("--key", key, "--model", model, "--prompt", "a")
    embed, text = ("embed", *options, "--message", "x"), tmp_path / "text"
    with open_ledger(ledger_beside(key)) as ledger:
        ledger.record(*range(127))
    code, out, err = run(*embed)
    assert "nonce 127:" in err
    assert "--nonce" not in err
    text.write_bytes(out)
    assert run("decode", *options, text, "--ledger", tmp_path / "other")[:2] == (0, b"x")
    code, out, err = run(*embed)
    assert "nonce 128:" in err
    assert "needs --nonce 128\n" in err
    text.write_bytes(out)
    code, _, err = run("decode", *options, text)
    assert code == 3
    assert "--search" in err
    assert "128 of 128 nonces tried in " in err
    for enough in (("--nonce", 128), ("--search", 129)):
        assert run("decode", *options, *enough, text, "--ledger", tmp_path / "".join(map(str, enough)))[:2] == (0, b"x")
    assert "needs --nonce 129 or the record" in run(*embed, "--record", tmp_path / "law.safetensors")[2]


def test_the_receiver_of_robust_takes_no_nonce_and_is_told_how_many_to_look_for(run, key):
    """Its 32 bits are sent with 32 of check and no header."""
    options = ("--key", key, "--prompt", "The mayor said", "--scheme", "robust", "--temperature", 1)
    code, _, err = run("embed", *options, "--message", "abcd", "--nonce", 128, "--tokens", 100)
    assert code == 0, err
    assert "nonce 128: 32 bits, 64 with the check" in err
    assert "needs --search 129\n" in err


def test_nonces_that_robust_does_not_have_are_refused_or_passed_over(run, key, tmp_path):
    options, text = ("--key", key, "--scheme", "robust"), tmp_path / "text"
    text.write_text("Nobody marked this text, and so there is nothing to be read in it.")
    for nonce in (1 << 26, 1 << 63, (1 << 64) - 1):
        for command in (("decode", text), ("embed", "--prompt", "a", "--message", "abcd")):
            code, _, err = run(*command, *options, "--nonce", nonce)
            assert (code, err) == (2, f"error: nonce={nonce}: a number from 0 to 2^26 - 1 is needed\n")
    note_seen(seen_beside(key), Seen("", (1 << 64) - 1, "cd", "ef", "ab"))  # of another scheme
    assert run("decode", text, *options)[0] == 3


def test_what_was_read_is_noted_and_a_replay_named(run, key, model, tmp_path):
    options = ("--key", key, "--model", model, "--prompt", "a")
    text = tmp_path / "text"
    text.write_bytes(run("embed", *options, "--message", "x", "--nonce", 100)[1])
    first, again = run("decode", *options, text)[2], run("decode", *options, text)[2]
    assert "before" not in first
    assert "101 of 128 nonces tried" in first
    assert "nonce 100 was read before, with the same message" in again
    assert "1 of 128 nonces tried" in again.splitlines()[0]
    written = text.read_bytes()
    quoted = b"".join(b"> " + line for line in written.splitlines(keepends=True))
    marked = b"\xef\xbb\xbf" + written, written.decode().encode("utf-16")
    for copy in (written + b"\r\n", *marked, b"a" + written, quoted, b"A letter.\n\n" + written):
        text.write_bytes(copy)
        err = run("decode", *options, text)[2]
        assert "1 of 128 nonces tried" in err.splitlines()[0]
        assert "nonce 100 was read before, with the same message" in err
    text.write_bytes(written + b" More.")
    code, out, err = run("decode", *options, text)
    assert (code, out) == (0, b"x")
    assert "nonce 100 was read before, with the same message" in err
    text.write_bytes(run("embed", *options, "--message", "z", "--nonce", 100, "--allow-nonce-reuse")[1])
    code, out, err = run("decode", *options, text)
    assert (code, out) == (0, b"z")
    assert "nonce 100 was read before, with another message: the sender used the nonce twice" in err
    assert (tmp_path / "secret.key.seen").stat().st_mode & 0o777 == 0o600
    # The search goes on behind what was seen.
    text.write_bytes(run("embed", *options, "--message", "y", "--nonce", 150)[1])
    assert run("decode", *options, text)[:2] == (0, b"y")


def test_a_decode_keeps_what_another_noted_while_it_read(run, key, model, tmp_path, monkeypatch):
    """The other command ends after this one has read the ledger, and before this one writes it."""
    options, text, seen = ("--key", key, "--model", model, "--prompt", "a"), tmp_path / "text", tmp_path / "seen"
    text.write_bytes(run("embed", *options, "--message", "x")[1])
    other, read = Seen("", 77, "cd", "ef", "ab"), commands.decode_with_model

    def read_late(*arguments):
        note_seen(seen, other)
        return read(*arguments)

    monkeypatch.setattr(commands, "decode_with_model", read_late)
    assert run("decode", *options, text, "--ledger", seen)[:2] == (0, b"x")
    assert [entry.nonce for entry in read_seen(seen)] == [77, 0]


def test_a_ledger_that_is_damaged_while_a_text_is_read_does_not_keep_the_message(
    run, key, model, tmp_path, monkeypatch
):
    options, text, seen = ("--key", key, "--model", model, "--prompt", "a"), tmp_path / "text", tmp_path / "seen"
    text.write_bytes(run("embed", *options, "--message", "x")[1])
    read = commands.decode_with_model

    def read_late(*arguments):
        seen.write_text("{}")
        return read(*arguments)

    monkeypatch.setattr(commands, "decode_with_model", read_late)
    code, out, err = run("decode", *options, text, "--ledger", seen)
    assert (code, out) == (0, b"x")
    assert "is not noted" in err
    assert seen.read_text() == "{}"


def test_a_ledger_that_cannot_be_written_does_not_keep_the_message(run, key, model, tmp_path):
    options, text = ("--key", key, "--model", model, "--prompt", "a"), tmp_path / "text"
    text.write_bytes(run("embed", *options, "--message", "x")[1])
    code, out, err = run("decode", *options, text, "--ledger", "/proc/none/seen")
    assert (code, out) == (0, b"x")
    assert "is not noted" in err


def test_an_interrupted_embed_uses_no_nonce(run, key, model, monkeypatch):
    options = ("embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x")

    def interrupt(*arguments):
        embed_with_retries(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(embedding, "embed_with_retries", interrupt)
    code, out, err = run(*options)
    assert (code, out) == (130, b"")
    assert "no nonce was used" in err
    monkeypatch.undo()
    assert "nonce 0" in run(*options)[2]


@pytest.mark.parametrize(
    ("stop", "code", "says"),
    [(KeyboardInterrupt(), 130, "interrupted: "), (BrokenPipeError(32, "Broken pipe"), 1, "pipe; ")],
)
def test_a_nonce_whose_text_got_lost_on_the_way_out_is_told(run, key, model, monkeypatch, stop, code, says):
    options = ("embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x")

    def fail(*arguments, **options):
        raise stop

    monkeypatch.setattr(commands, "write_text_sent", fail)
    result, out, err = run(*options)
    assert (result, out) == (code, b"")
    assert says in err
    assert "nonce 0 counts as used" in err
    assert "no nonce was used" not in err
    monkeypatch.undo()
    assert "nonce 1" in run(*options)[2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--message", "x"), "--prompt or --prompt-file"),
        (("--prompt", "a"), "one of --message"),
        (("--prompt", "a", "--message", "x", "--message-bits", "1"), "one of --message"),
        (("--prompt", "a", "--message-bits", "12"), "0 and 1 only"),
        (("--prompt", "a", "--message-file", "/nowhere/at/all"), "/nowhere/at/all: no such file"),
        (("--prompt", "a", "--message-file", "/tmp"), "/tmp is a folder: name a file"),
        (("--prompt-file", "/tmp", "--message", "x"), "/tmp is a folder: name a file"),
        (("--prompt", "a", "--message", os.fsdecode(b"\xff")), "--message is not UTF-8 text"),
        (("--prompt", os.fsdecode(b"\xff\xfe"), "--message", "x"), "--prompt is not UTF-8 text"),
        (
            ("--prompt", "a", "--message", "x", "--record", "/tmp"),
            "/tmp is no file that can be written: name another --record",
        ),
        (("--prompt", "a", "--message", "x", "--ledger", "/dev/null"), "name another --ledger"),
        (("--prompt", "a", "--message", "x", "--record", "/proc/no/such"), "cannot be written: name another --record"),
        (("--prompt", "a", "--message", "x" * 99, "--max-blocks", "3"), "bytes fits"),
        (("--prompt", "a", "--message", "x", "--temperature", "-1"), "temperature=-1"),
        (("--prompt", "a", "--message", "x", "--nonce", "-1"), "2^64"),
    ],
)
def test_bad_input_is_exit_code_2(run, key, model, arguments, complaint):
    code, out, err = run("embed", "--key", key, "--model", model, *arguments)
    assert (code, out) == (2, b"")
    assert complaint in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--search", "0"), "from 1 to"),
        (("--search", "-5"), "from 1 to"),
        (("--search", 1 << 64), "from 1 to"),
        (("--search", "3", "--nonce", "1"), "leave it out"),
        (("--search", "3", "--record", "x"), "leave it out"),
        (("--nonce", "-1"), "2^64"),
    ],
)
def test_nonces_that_cannot_be_tried(run, key, model, arguments, complaint):
    code, out, err = run("decode", "--key", key, "--model", model, "--prompt", "a", key, *arguments)
    assert (code, out) == (2, b"")
    assert complaint in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--record", "--ledger"])
@pytest.mark.parametrize("victim", ["key", "prompt", "message", "model", "link"])
def test_what_is_written_replaces_nothing_that_is_read(run, key, model, tmp_path, option, victim):
    prompt, message, weights = tmp_path / "prompt.txt", tmp_path / "message.bin", Path(model) / "model.safetensors"
    prompt.write_bytes(b"the year")
    # What a ledger looks like, so that nothing else stops the command from writing one there.
    with open_ledger(message) as ledger:
        ledger.record(1)
    (tmp_path / "link").symlink_to(prompt)
    victims = {"key": key, "prompt": prompt, "message": message, "model": weights, "link": tmp_path / "link"}
    before = {path: path.read_bytes() for path in victims.values()}
    options = ("embed", "--key", key, "--model", model, "--prompt-file", prompt, "--message-file", message)
    code, out, err = run(*options, option, victims[victim])
    assert (code, out) == (2, b"")
    assert err.endswith(f": name another {option}\n")
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("option", ["--record", "--ledger"])
def test_what_is_written_does_not_replace_the_text(key, tmp_path, option):
    same = tmp_path / "same.txt"
    (tmp_path / "link").symlink_to(same)
    for name in (same, tmp_path / "link"):
        with same.open("wb") as out:
            options = ["embed", "--key", key, "--prompt", "a", "--message", "x", option, name]
            done = subprocess.run(
                [sys.executable, "-m", "polar", *map(str, options)], cwd=ROOT, stdout=out, stderr=subprocess.PIPE
            )
        assert done.returncode == 2
        assert done.stderr.decode().endswith(
            f"is where standard output goes, and the text with it: name another {option}\n"
        )
        assert done.stderr.count(b"\n") == 1
        assert same.read_bytes() == b""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "same.txt", "secret.key"]


def test_inputs_without_end(run, key, model, tmp_path, monkeypatch):
    endless = tmp_path / "endless"
    with endless.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    options = ("--key", key, "--model", model)
    for most, arguments in (
        (MOST_BYTES, ("embed", *options, "--prompt", "a", "--message-file", endless)),
        (MOST_PROMPT, ("embed", *options, "--prompt-file", endless, "--message", "x")),
        (MOST_BYTES, ("decode", *options, "--prompt", "a", endless)),
        (MOST_PROMPT, ("decode", *options, "--prompt-file", endless, key)),
    ):
        says = f"error: {endless} has more than {most:,} bytes, or no end: give less\n"
        assert run(*arguments) == (2, b"", says)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"12345")))
    with pytest.raises(ValueError, match="standard input has more than 4 bytes"):
        read_input(Path("-"), 4)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"12345")))
    assert read_input(Path("-"), 5) == b"12345"


def test_an_embed_whose_lock_was_removed_prints_nothing(run, key, model, monkeypatch):
    options = ("embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x")

    def clear(*arguments):
        sent = embed_with_retries(*arguments)
        key.with_name(key.name + ".nonces.lock").unlink()
        return sent

    monkeypatch.setattr(embedding, "embed_with_retries", clear)
    code, out, err = run(*options)
    assert (code, out) == (1, b"")
    assert "nonce 0 may be another text's: the text is not printed" in err
    monkeypatch.undo()
    assert "nonce 0:" in run(*options)[2]


def test_the_law_does_not_replace_the_ledger(run, key, model):
    options = ("embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x")
    for name in ("nonces", "nonces.lock"):
        code, out, err = run(*options, "--record", f"{key}.{name}")
        assert (code, out) == (2, b"")
        assert "name another --record" in err


def test_the_lock_of_a_ledger_leaves_a_file_of_that_name_as_it_is(run, key, model, tmp_path):
    other = tmp_path / "notes.lock"
    other.write_text("something else")
    options = ("embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x")
    assert run(*options, "--ledger", tmp_path / "notes")[0] == 0
    assert other.read_text() == "something else"


def test_a_nonce_is_noted_before_the_law_gets_out(run, key, model, tmp_path, monkeypatch):
    options = ("embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x", "--record", tmp_path / "law")

    def fail(law, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "save_record", fail)
    code, out, err = run(*options)
    assert (code, out) == (1, b"")
    assert "error: No space left on device: make room, or name another place; nonce 0 counts as used" in err
    monkeypatch.undo()
    monkeypatch.setattr(NonceLedger, "record", fail)
    code, out, err = run(*options)
    assert (code, out) == (1, b"")
    assert not (tmp_path / "law").exists()
    monkeypatch.undo()
    assert "nonce 1" in run(*options)[2]


def test_what_gets_out_does_not_depend_on_who_can_be_told(key, model, tmp_path):
    def untold(*arguments):
        command = ["sh", "-c", 'exec "$@" 2>/dev/full', "sh", sys.executable, "-m", "polar", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
        return done.returncode, done.stdout

    options = ("--key", key, "--model", model, "--prompt", "a")
    code, text = untold("embed", *options, "--message", "x")
    assert code == 0
    (tmp_path / "text").write_bytes(text)
    assert untold("decode", *options, tmp_path / "text") == (0, b"x")
    assert untold("embed", *options, "--message", "x", "--nonce", 0) == (2, b"")


def test_nonces_are_counted_across_links(run, key, model, tmp_path):
    (tmp_path / "d").mkdir()
    link = tmp_path / "d" / "link.key"
    link.symlink_to(key)
    for number, path in enumerate((key, link, key, link)):
        code, _, err = run("embed", "--key", path, "--model", model, "--prompt", "a", "--message", "x")
        assert code == 0
        assert f"nonce {number}:" in err
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["link.key"]


def test_a_model_without_entropy_is_exit_code_1(run, key, model):
    code, out, err = run(
        "embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x", "--temperature", "1e-6",
        "--patience", "20", "--form", "any",
    )  # fmt: skip
    assert (code, out) == (1, b"")
    assert "leaves no choice" in err


def test_key_files(run, key, model, tmp_path):
    assert run("keygen", key)[0] == 2
    assert run("keygen", tmp_path / "other.key")[0] == 0
    assert load_key(tmp_path / "other.key") != load_key(key)
    key.chmod(0o644)
    code, _, err = run("embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x")
    assert code == 2
    assert "chmod 600" in err
    assert run("decode", "--key", tmp_path / "none", "--model", model, "--prompt", "a", key)[0] == 2


def test_unknown_options_are_exit_code_2():
    for arguments in (["embed"], ["embed", "--secret", "abc"], ["unknown"], []):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["embed", "--help"], 0),
        (["decode", "--help"], 0),
        (["unknown"], 2),
        (["keygen", "new.key"], 0),
        (["embed", "--key", "none", "--prompt", "a", "--message", "x"], 2),
        (["embed", "--key", "new.key", "--message", "x"], 2),
        (["embed", "--key", "new.key", "--prompt", "a", "--message", "x", "--block-length", "3"], 2),
        (["decode", "--key", "new.key", "--prompt", "a", "no-such-text"], 2),
        (["embed", "--key", "new.key", "--prompt", "a", "--message", "x", "--ledger", "new.key.damaged"], 2),
        (["embed", "--key", "new.key", "--prompt", "a", "--message", "x", "--ledger", "locked"], 2),
        (["embed", "--key", "new.key", "--prompt", "a", "--message", "x", "--ledger", "five", "--nonce", "5"], 2),
        (["embed", "--key", ".", "--prompt", "a", "--message", "x"], 2),
        (["keygen", "none/new.key"], 2),
    ],
)
def test_help_keys_and_refusals_do_without_torch(tmp_path, arguments, code):
    if arguments[0] != "keygen":
        save_key(Key(bytes(range(32))), tmp_path / "new.key")
    (tmp_path / "new.key.damaged").touch()
    (tmp_path / "locked.lock").mkdir()
    with open_ledger(tmp_path / "five") as ledger:
        ledger.record(5)
    finished = run_command(tmp_path, arguments)
    assert finished.returncode == code
    assert finished.stderr.splitlines()[-1] == "imported: []"


@pytest.mark.parametrize(
    ("scheme", "also"), [("stream", []), ("block", ["scipy"]), ("parallel", ["scipy"]), ("robust", ["scipy"])]
)
def test_a_model_in_exact_arithmetic_needs_torch_alone(tmp_path, model, scheme, also):
    """Of scipy only the small parts: `scipy.stats` and `scipy.optimize` take half a second."""
    # A key of its own would be another text every time, and the small model has keys behind which none decodes.
    save_key(Key(bytes(range(32))), tmp_path / "new.key")
    own = {
        "block": "--candidates 16 --block-length 4",
        "parallel": "--positions 8 --hash-bits 2 --effective-tokens 8 --bit-error 0.05 --temperature 1",
        "robust": "--tokens 9",
    }
    flags = ["--scheme", scheme, "--key", "new.key", "--model", model, *own.get(scheme, "").split()]
    prompt = ["--prompt", "the year"]
    written = run_command(tmp_path, ["embed", *flags, *prompt, "--message", "user"])
    assert written.returncode == (1 if scheme == "robust" else 0)  # 9 tokens hold no message of 32 bits
    assert written.stderr.splitlines()[-1] == f"imported: {['torch', *also]}"
    if scheme != "robust":
        (tmp_path / "text").write_text(written.stdout)
        read = run_command(tmp_path, ["decode", *flags, *(prompt if scheme != "parallel" else []), "text"])
        assert (read.returncode, read.stdout) == (0, "user")
        assert read.stderr.splitlines()[-1] == f"imported: {['torch'] * (scheme != 'parallel') + also}"


def test_a_receiver_without_a_model_does_without_torch(tmp_path):
    save_key(Key(bytes(range(32))), tmp_path / "new.key")
    (tmp_path / "text").write_text("the they there " * 9)
    finished = run_command(tmp_path, ["decode", "--scheme", "parallel", "--key", "new.key", "--nonce", "0", "text"])
    assert finished.returncode == 3
    assert finished.stderr.splitlines()[-1] == "imported: ['scipy']"


def run_command(folder, arguments):
    """The command in a process of its own, which tells what it imported."""
    known = (
        "torch",
        "transformers",
        "scipy",
        "scipy.stats",
        "scipy.optimize",
        "pandas",
        "sklearn",
        "matplotlib",
        "sympy",
    )
    heavy = f"[name for name in {known} if name in sys.modules]"
    code = (
        "import atexit, runpy, sys; "
        f"atexit.register(lambda: print('imported:', {heavy}, file=sys.stderr)); "
        f"sys.argv = ['polar', *{arguments!r}]; runpy.run_module('polar', run_name='__main__')"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def on_a_terminal(monkeypatch, message, write=output.write_message, encoding="utf-8"):
    """What `write` shows of a message on a terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding=encoding) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        try:
            write(message)
        finally:
            monkeypatch.undo()
            os.set_blocking(ours, False)
            try:
                shown = os.read(ours, 1000)
            except BlockingIOError:
                shown = b""
            os.close(ours)
    return shown.replace(b"\r\n", b"\n")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (b"user 4711", b"user 4711\n"),
        ("grüße\n".encode(), "grüße\n".encode()),
        (b"", b"\n"),
        (parse_bits("0110"), b"0110\n"),
    ],
)
def test_a_message_on_a_terminal_ends_its_line(monkeypatch, capfdbinary, message, shown):
    assert on_a_terminal(monkeypatch, message) == shown
    output.write_message(message)
    assert capfdbinary.readouterr().out == (str(message).encode() if isinstance(message, BitString) else message)


@pytest.mark.parametrize("message", [b"\x00\xff", b"\x1b[2J", b"over\rwritten", "\x9b2J".encode()])
def test_bytes_that_are_no_plain_text_stay_off_a_terminal(monkeypatch, capfdbinary, message):
    with pytest.raises(RuntimeError, match=f"{len(message)} bytes .* > FILE"):
        on_a_terminal(monkeypatch, message)
    output.write_message(message)
    assert capfdbinary.readouterr().out == message


def test_letters_whose_bytes_another_terminal_takes_for_controls_stay_off_it(monkeypatch):
    message = "ě31m".encode()  # its second byte is the control sequence introducer of Latin-1
    assert b"\x9b" in message
    assert on_a_terminal(monkeypatch, message) == message + b"\n"
    assert on_a_terminal(monkeypatch, b"31m", encoding="latin-1") == b"31m\n"
    with pytest.raises(WorkFailedError, match=r"5 bytes that are no latin-1, .* > FILE"):
        on_a_terminal(monkeypatch, message, encoding="latin-1")
    with pytest.raises(WorkFailedError, match="add > FILE"):
        on_a_terminal(monkeypatch, message.decode(), output.write_text_sent, "latin-1")


def test_a_passage_of_a_document_commands_no_terminal(monkeypatch, capfdbinary):
    passage = "a \x1b[2J\nline\u202e"
    write = partial(output.write_passage, 3, 9)
    assert on_a_terminal(monkeypatch, passage, write) == b"3-9\ta \\x1b[2J line\\u202e\n"
    write(passage)
    assert capfdbinary.readouterr().out == "3-9\ta \x1b[2J line\u202e\n".encode()


def test_a_text_that_could_command_a_terminal_stays_off_it(monkeypatch, capfdbinary):
    with pytest.raises(WorkFailedError, match="add > FILE"):
        on_a_terminal(monkeypatch, "a \x1b[2J", output.write_text_sent)
    assert on_a_terminal(monkeypatch, "a 水", output.write_text_sent) == "a 水\n".encode()
    output.write_text_sent("a \x1b[2J")
    assert capfdbinary.readouterr().out == b"a \x1b[2J"


def test_a_full_disk_behind_standard_output_is_named(monkeypatch):
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(full))
        with pytest.raises(OSError, match="No space left") as raised:
            output.write_output(b"text", newline=True)
        monkeypatch.undo()
    assert raised.value.filename == "standard output"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (
            (),
            [
                "key",
                "nonce (tried: 0 to 127; --nonce N or --search",
                "prompt",
                "scheme (stream)",
                "temperature (0.7)",
                "other settings",
            ],
        ),
        (("--nonce", 7, "--temperature", 2.5), ["nonce (tried: 7)", "temperature (2.5)"]),
        (("--scheme", "block", "--candidates", 4, "--block-length", 2), ["scheme (block)", "all other settings"]),
        (("--scheme", "parallel"), ["scheme (parallel)", "tokenizer", "all other settings"]),
    ],
)
def test_a_text_without_a_message_names_what_must_agree(run, key, model, tmp_path, monkeypatch, given, named):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    text = tmp_path / "text"
    text.write_bytes(b"the they there the they there the they there")
    code, _, err = run("decode", "--key", key, "--model", model, "--prompt", "a", *given, text)
    assert code == 3
    # Lines of progress come first.
    hint = next(line for line in err.splitlines() if "must be the sender's" in line)
    for words in [*named, model]:
        assert words in hint


def test_the_block_scheme_tells_its_cost_first_and_progress_where_there_is_no_terminal(run, key, model, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    small = ("--scheme", "block", "--block-length", 4, "--candidates", 16)
    code, _, err = run("embed", "--key", key, "--model", model, "--prompt", "", "--message", "x", *small)
    assert code == 0
    lines = err.splitlines()
    # A message of one byte with a header of 8 bits and a check of 32, 4 bits a block at most.
    assert lines[0].startswith("48 bits with the frame")
    assert "12 blocks or more" in lines[0]
    told = [int(line) for line in re.findall(r"(\d+)/48 ", err)]
    assert told == sorted(told)
    assert told[0] == 0
    assert 40 < told[-1] < 48


def test_progress_goes_on_to_the_end_of_the_sentence_and_names_the_nonce_that_is_read(
    run, key, model, tmp_path, monkeypatch
):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    options, text = ("--key", key, "--model", model, "--prompt", "a"), tmp_path / "text"
    for nonce in range(2, 8):  # some message ends where the sentence does, another one on another processor
        code, out, err = run("embed", *options, "--nonce", nonce, "--message", "x")
        assert code == 0
        tokens, coded = (int(re.search(pattern, err)[1]) for pattern in (r"of (\d+) tokens", r"in (\d+) of"))
        if tokens > coded:
            break
    assert tokens > coded
    told = [int(line) for line in re.findall(r"tokens to the sentence's end, at most: .* (\d+)/64 ", err)]
    assert told == list(range(len(told)))
    assert len(told) - (tokens - coded) in (0, 1)
    text.write_bytes(out)
    err = run("decode", *options, text)[2]
    nonces = [int(nonce) for nonce in re.findall(r"^nonce (\d+), bytes: ", err, re.M)]
    assert nonces == sorted(nonces)
    assert set(nonces) == {*range(nonce + 1)}


def test_a_second_embed_says_that_it_waits(tmp_path):
    """The first lets go once the second has said so."""
    said, first = [], contextlib.ExitStack()
    first.enter_context(open_ledger(tmp_path / "nonces"))

    def say(line):
        said.append(line)
        first.close()

    with open_ledger(tmp_path / "nonces", say):
        assert len(said) == 1
        assert "waiting" in said[0]
    with open_ledger(tmp_path / "nonces", say):
        assert len(said) == 1
