import io
import json
import sys

import pytest
from ascii_lm import write_ascii_lm

from polar import __main__ as command
from polar.__main__ import main
from polar.embedding import embed_with_retries


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_ascii_lm(tmp_path_factory.mktemp("lm")))


@pytest.fixture
def key(tmp_path, capsysbinary):
    path = tmp_path / "secret.key"
    assert main(["keygen", str(path)]) == 0
    capsysbinary.readouterr()
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
    assert "nonce 0: 88 bits, 128 with the frame" in err
    assert "exactly the model's law" in err
    text.write_bytes(out)
    code, out, err = run("decode", *options, text)
    assert (code, out) == (0, message.read_bytes())
    assert "nonce 0, p-value" in err


def test_block_scheme_bits_and_law(run, key, model, tmp_path, monkeypatch):
    law = tmp_path / "text.safetensors"
    small = ("--scheme", "block", "--block-length", 4, "--candidates", 16)
    code, text, err = run(
        "embed", "--key", key, "--model", model, "--prompt", "", "--message-bits", "0110", *small, "--law", law
    )
    assert code == 0
    assert "fingerprint" in err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run("decode", "--key", key, "--law", law, "-")[:2] == (0, b"0110")
    for wrong in (("--prompt", "other"), ("--nonce", 3)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        code, out, err = run("decode", "--key", key, "--law", law, *wrong, "-")
        assert (code, out) == (2, b"")
        assert "fingerprint" in err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"other text")))
    code, out, err = run("decode", "--key", key, "--law", law, "-")
    assert (code, out) == (3, b"")
    assert "was made for another text" in err


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


def test_an_interrupted_embed_uses_no_nonce(run, key, model, monkeypatch):
    options = ("embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x")

    def interrupt(*arguments):
        embed_with_retries(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "embed_with_retries", interrupt)
    code, out, err = run(*options)
    assert (code, out) == (130, b"")
    assert "no nonce was used" in err
    monkeypatch.undo()
    assert "nonce 0" in run(*options)[2]


@pytest.mark.parametrize(
    ("stop", "code", "says"),
    [(KeyboardInterrupt(), 130, "interrupted: "), (BrokenPipeError(32, "Broken pipe"), 2, "pipe; ")],
)
def test_a_nonce_whose_text_got_lost_on_the_way_out_is_told(run, key, model, monkeypatch, stop, code, says):
    options = ("embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x")

    def fail(*arguments, **options):
        raise stop

    monkeypatch.setattr(command, "write_output", fail)
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
        (("--prompt", "a", "--message-file", "/nowhere/at/all"), "No such file"),
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


def test_a_model_without_entropy_is_exit_code_1(run, key, model):
    code, out, err = run(
        "embed", "--key", key, "--model", model, "--prompt", "a", "--message", "x", "--temperature", "1e-6",
        "--patience", "20",
    )  # fmt: skip
    assert (code, out) == (1, b"")
    assert "leaves no choice" in err


def test_key_files(run, key, model, tmp_path):
    assert run("keygen", key)[0] == 2
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
