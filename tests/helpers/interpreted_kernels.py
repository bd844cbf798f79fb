"""Run as a program under TRITON_INTERPRET=1: kernels on a CPU. Prints one JSON object with what the tests ask for."""

import json
from collections.abc import Iterator

import torch
from exact_networks import FUSED_GROUPS, FUSED_HEADS, random_network, reading
from triton.runtime import interpreter

from wm_env.lm.models.exact import kernels
from wm_env.lm.models.exact.fused import FusedLayers
from wm_env.lm.models.exact.fused_start import problems
from wm_env.lm.models.exact.network import ExactNetwork
from wm_env.lm.models.exact.quantise import W8
from wm_env.lm.models.exact.steps import EagerSteps
from wm_env.lm.models.exact.weights import ExactShape, FloatSource

CANVAS = torch.randint(0, 100, (2, 5), generator=torch.Generator().manual_seed(5))


def mend_interpreter() -> None:
    """Triton 3.6 makes an index of an array with one entry by int(), which NumPy 2.4 refuses."""
    set_attr = interpreter._LangPatchScope.set_attr

    def mended(self, owner, name, value):
        set_attr(self, owner, name, (lambda tensor: tensor.handle.data.item()) if name == "__index__" else value)

    interpreter._LangPatchScope.set_attr = mended


def network(shape: ExactShape, **options) -> ExactNetwork:
    return ExactNetwork(FloatSource(shape, W8, reading(random_network(shape))), **options)


def compared() -> Iterator[dict[str, object]]:
    """Passes with fused kernels and without."""
    for shape in (FUSED_GROUPS, FUSED_HEADS):
        fused, eager = network(shape, kind="int8"), network(shape, kind="float64")
        for positions in ([0, 4], [2]):
            equal = torch.equal(fused.logits(CANVAS, positions), eager.logits(CANVAS, positions))
            yield {"steps": fused.fusion, "eager": eager.fusion, "equal": equal}


def spoiled() -> Iterator[dict[str, object]]:
    """One kernel after the other replaced by a wrong one: what the check says, and whether logits are right."""
    right = network(FUSED_GROUPS, kind="float64").logits(CANVAS, [2])
    plain = network(FUSED_GROUPS, kind="int8", fuse=False)
    for name in ("added_norm", "turned", "attended"):
        found = dict(problems(_Spoiled(plain._steps, name), plain._steps))
        yield {"name": name, "found": sorted(kernel for kernel, problem in found.items() if problem)}
    kernels.norm = None
    fallen = network(FUSED_GROUPS, kind="int8")
    yield {"name": "missing", "found": fallen.fusion, "equal": torch.equal(fallen.logits(CANVAS, [2]), right)}


class _Spoiled(FusedLayers):
    """One of the steps gives a number of which the last bit is another one."""

    def __init__(self, eager: EagerSteps, name: str) -> None:
        super().__init__(eager)
        step = getattr(self, name)

        def other(*arguments, **options):
            result = step(*arguments, **options)
            tensor = result if isinstance(result, torch.Tensor) else result.scale
            tensor.view(-1)[1:2].view(torch.int32).bitwise_xor_(1)
            return result

        setattr(self, name, other)


if __name__ == "__main__":
    mend_interpreter()
    print(json.dumps({"compared": list(compared()), "spoiled": list(spoiled())}))
