"""Fused kernels: the bits of the eager pass in Triton's interpreter, and one IEEE operation a step in what it compiles.

Without a GPU neither is the whole proof; on one, `fused_start` compares every kernel before it is used.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from exact_networks import FUSED_GROUPS, FUSED_HEADS, LLADA, random_network, reading
from repository import ROOT

from wm_env.common.foreign.imports import is_installed
from wm_env.lm.models.exact import fused, fused_start
from wm_env.lm.models.exact.network import ExactNetwork
from wm_env.lm.models.exact.products import exact_kinds
from wm_env.lm.models.exact.quantise import W8, W24
from wm_env.lm.models.exact.steps import EagerSteps
from wm_env.lm.models.exact.weights import ExactShape, FloatSource

needs_triton = pytest.mark.skipif(not is_installed("triton"), reason="Triton is not installed")
needs_int8 = pytest.mark.skipif("int8" not in exact_kinds(W8, "cpu", [64]), reason="int8 products are not exact here")


def network(shape: ExactShape, **options: Any) -> ExactNetwork:
    return ExactNetwork(FloatSource(shape, W8, reading(random_network(shape))), **options)


@pytest.fixture(scope="module")
def interpreted() -> dict[str, list[dict[str, Any]]]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "helpers")))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    program = ROOT / "tests" / "helpers" / "interpreted_kernels.py"
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_triton
@needs_int8
def test_a_fused_pass_is_the_bits_of_the_eager_one(interpreted: dict[str, list[dict[str, Any]]]) -> None:
    assert [case["steps"] for case in interpreted["compared"]] == ["fused"] * 4
    assert all(case["equal"] for case in interpreted["compared"])


@needs_triton
@needs_int8
def test_a_kernel_that_gives_another_bit_is_named_and_not_used(interpreted: dict[str, list[dict[str, Any]]]) -> None:
    *spoiled, missing = interpreted["spoiled"]
    assert {case["name"]: case["found"] for case in spoiled} == {
        "added_norm": ["added_norm"],
        "turned": ["turned keys", "turned queries"],
        "attended": ["attention over 130", "attention over 21"],
    }
    assert missing["found"].startswith("eager: norm does not run (TypeError")
    assert missing["equal"]


@dataclass(frozen=True)
class Launch:
    """What a kernel would have been launched with."""

    kernel: Any
    arguments: tuple[torch.Tensor | int, ...]
    constants: dict[str, Any]


def launches(shape: ExactShape) -> Iterator[Launch]:
    """Those of the check of a network, without a GPU to run them."""
    seen: dict[str, Launch] = {}

    def note(kernel: Any, grid: tuple[int, ...], *arguments: torch.Tensor | int, **constants: Any) -> None:
        seen.setdefault(f"{kernel.__name__} {constants}", Launch(kernel, arguments, constants))

    steps = EagerSteps(shape, W8, "int8", torch.device("cpu"))
    list(fused_start.problems(fused.FusedLayers(steps, note), steps))
    return iter(seen.values())


def compiled(launch: Launch) -> str:
    """PTX of a launch for a Hopper GPU, as `fused.launched` asks for it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {torch.float32: "*fp32", torch.int8: "*i8", torch.int32: "*i32"}
    names = launch.kernel.arg_names
    signature, constants = dict.fromkeys(names, "constexpr"), {}
    for name, argument in zip(names, launch.arguments, strict=False):
        signature[name] = types[argument.dtype] if isinstance(argument, torch.Tensor) else "i32"
    options: dict[str, Any] = dict(fused.ONE_BY_ONE)
    for name, value in launch.constants.items():
        if name in signature:
            constants[(names.index(name),)] = value
        else:
            options[name] = value
    source = ASTSource(launch.kernel, signature, constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


@needs_triton
@needs_int8
def test_every_step_of_the_compiled_kernels_is_one_rounded_operation() -> None:
    seen = set()
    for launch in launches(FUSED_GROUPS):
        operations = re.findall(r"^\s+(?:@%p\d+ )?([a-z][\w.:]*f(?:32|64))\b", compiled(launch), re.MULTILINE)
        arithmetic = {
            operation for operation in operations if operation.startswith(("add", "sub", "mul", "div", "sqrt"))
        }
        assert all(re.fullmatch(r"(add|sub|mul|div|sqrt)\.rn\.f(32|64)", operation) for operation in arithmetic)
        assert not [operation for operation in operations if re.search(r"fma|mad|approx|ftz|ex2|lg2|rsqrt", operation)]
        seen |= arithmetic
    assert {"div.rn.f32", "div.rn.f64", "sqrt.rn.f64"} <= seen


@needs_int8
def test_a_pass_says_why_it_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(FUSED_HEADS, layers=1)
    source = FloatSource(shape, W24, reading(random_network(shape)))
    assert ExactNetwork(source).fusion == "eager: float64 products are not fused"
    assert network(shape, kind="int8", fuse=False).fusion == "eager"
    monkeypatch.setattr(fused_start, "is_installed", lambda name: False)
    assert network(shape, kind="int8").fusion == "eager: Triton is not installed"


@needs_triton
@needs_int8
def test_what_kernels_do_not_know_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    assert network(FUSED_HEADS, kind="int8").fusion == "eager: Triton has no kernels for cpu"
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    assert network(LLADA, kind="int8").fusion == "eager: heads 8 wide are not fused"
    assert fused.is_short(4096)
    assert not fused.is_short(1 << 20)
