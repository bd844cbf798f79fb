"""Settings of a process that would change exact numbers: refused by name, or switched off around a pass."""

import os
import sys
from collections.abc import Callable
from typing import TypeVar

import torch

from wm_env.lm.models.exact.products import Kind, NotExactError, check_float32

T = TypeVar("T")

_EMULATION = "CUBLAS_EMULATE_DOUBLE_PRECISION"


def check_process(device: torch.device, kind: Kind) -> None:
    """Check the settings that a pass depends on, before every pass.

    Raises:
        NotExactError: autocast is on; or reduced float32 products, where float32 products are used; or float64
            products are emulated, on a GPU.
    """
    if torch.is_autocast_enabled(device.type):
        raise NotExactError("autocast changes the number format of single operations: leave it before the model is run")
    if kind == "float32":
        check_float32(device)
    if device.type == "cuda" and os.environ.get(_EMULATION, "0") != "0":
        raise NotExactError(f"{_EMULATION} replaces float64 products by others: unset it")


def uncompiled(call: Callable[[], T]) -> T:
    """Call it with torch.compile switched off, which would fuse products and sums.

    A call that raised an error under torch.compile would be compiled piece by piece instead, without a word.
    """
    dynamo = sys.modules.get("torch._dynamo")
    result: T = call() if dynamo is None else dynamo.disable(call)()
    return result
