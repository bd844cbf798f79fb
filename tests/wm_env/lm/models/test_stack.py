"""A receiver on another stack: the right message or none, and the stack by name; never a wrong message."""

import dataclasses
import subprocess
import sys

import pytest
import torch
import transformers
from ascii_lm import write_ascii_lm
from torch.nn.attention import SDPBackend, sdpa_kernel

from polar import __main__ as command
from polar.text.channel import open_channel
from polar.text.decoding import decode
from polar.text.embedding import embed_with_retries
from polar.text.keys.key import Key, save_key
from polar.text.schemes.block import Block
from polar.text.schemes.stream import Stream
from polar.text.settings import Settings
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.stack import stack_of

KEY = Key(bytes(range(32)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_ascii_lm(tmp_path_factory.mktemp("lm"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The same tokenizer, other weights."""
    return write_ascii_lm(tmp_path_factory.mktemp("other"), scale=0.51)


def test_a_stack_is_named_by_all_that_matters(folder, other):
    stack = stack_of(load_lm(folder, arithmetic="float"))
    assert (stack.numbers, stack.torch) == ("float32", torch.__version__)
    assert stack.transformers == transformers.__version__
    assert stack == stack_of(load_lm(folder, arithmetic="float"))
    for changed in (load_lm(other, arithmetic="float"), load_lm(folder, dtype=torch.bfloat16), load_lm(folder)):
        assert stack_of(changed).fingerprint != stack.fingerprint
    for field in dataclasses.fields(stack):
        assert dataclasses.replace(stack, **{field.name: "another"}).fingerprint != stack.fingerprint
        if field.name not in ("model", "tokenizer"):
            assert getattr(stack, field.name) in str(stack)
    assert stack.model[:12] in str(stack)


def test_a_stack_in_floats_names_what_reduces_its_numbers(folder):
    lm, exact = load_lm(folder, arithmetic="float"), load_lm(folder)
    usual, unchanged = stack_of(lm), stack_of(exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert stack_of(lm).numbers == "float32, autocast to bfloat16"
    torch.set_float32_matmul_precision("medium")
    try:
        assert stack_of(lm).numbers == "float32, products of bf16 precision"
        assert stack_of(exact) == unchanged
    finally:
        torch.set_float32_matmul_precision("highest")
    assert stack_of(lm) == usual


def test_an_exact_stack_is_model_tokenizer_and_arithmetic(folder, other):
    stack = stack_of(load_lm(folder))
    model, tokenizer = stack.model[:12], stack.tokenizer[:12]
    assert str(stack) == f"stack {stack.fingerprint[:12]} (model {model}, tokenizer {tokenizer}, exact-1 w24)"
    assert stack_of(load_lm(other)).fingerprint != stack.fingerprint


@pytest.mark.parametrize("scheme", [Stream(), Block(candidates=16)], ids=["stream", "block"])
@pytest.mark.parametrize("kind", ["other weights", "bfloat16"])
def test_another_stack_never_reads_another_message(folder, other, scheme, kind):
    settings = Settings(scheme=scheme)
    receiver = load_lm(other) if kind == "other weights" else load_lm(folder, dtype=torch.bfloat16)
    sender = open_channel(load_lm(folder), "the tide", settings)
    found = []
    for number in range(6 if scheme.name == "stream" else 2):
        message = bytes([number, 255 - number])
        sent = embed_with_retries(sender, message, KEY, range(4 * number, 4 * number + 4))
        text = sent.text.encode()
        assert decode(sender, text, KEY, [sent.nonce]).message == message
        read = decode(open_channel(receiver, "the tide", settings), text, KEY, [sent.nonce])
        assert read.message in (None, message)
        found.append(read.message)
    if kind == "other weights":
        assert set(found) == {None}


def test_both_ends_are_named(folder, other, tmp_path, capsysbinary):
    def run(*arguments):
        code = command.main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    key = tmp_path / "secret.key"
    save_key(KEY, key)
    code, text, err = run("embed", "--key", key, "--model", folder, "--prompt", "the tide", "--message-bits", "1011")
    assert code == 0
    assert f"written with {stack_of(load_lm(folder))}" in err
    (tmp_path / "text").write_bytes(text)
    code, out, err = run("decode", "--key", key, "--model", other, "--prompt", "the tide", tmp_path / "text")
    assert (code, out) == (3, b"")
    assert f"read with {stack_of(load_lm(other))}" in err
    assert "record" in err


def test_ways_of_attention_that_are_switched_off_are_part_of_a_float_stack(folder):
    lm, exact = load_lm(folder, arithmetic="float"), load_lm(folder)
    usual = stack_of(lm), stack_of(exact)
    with sdpa_kernel(SDPBackend.MATH):
        assert "attention without flash and mem_efficient" in str(stack_of(lm))
        assert stack_of(lm).fingerprint != usual[0].fingerprint
        assert stack_of(exact) == usual[1]
    assert stack_of(lm) == usual[0]


def test_products_that_were_reduced_through_the_newer_interface_are_seen(folder):
    """In a process of its own: torch does not let a program go back to the older interface."""
    program = (
        "import sys, torch; torch.backends.mkldnn.matmul.fp32_precision = 'bf16'\n"
        "from wm_env.lm.models.load import load_lm; from wm_env.lm.models.stack import stack_of\n"
        "print(stack_of(load_lm(sys.argv[1], arithmetic='float')).numbers)"
    )
    run = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert run.stdout == "float32, products of bf16 precision\n"
