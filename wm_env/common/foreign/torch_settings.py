"""Settings of torch that a program may have changed for itself: its default device, autocast, gradients.

Free of torch: what has not been imported has no settings, and a receiver without a model does without.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_DEVICES = ("cpu", "cuda")


@contextmanager
def usual_device() -> Iterator[None]:
    """Within the context tensors are made on the CPU unless their device is named, whatever the default device is.

    For the caller's thread alone, and also a decorator. What is to be on a GPU has its device named.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.get_default_device().type == "cpu":
        yield
        return
    with torch.device("cpu"):
        yield


@contextmanager
def usual_torch() -> Iterator[None]:
    """`usual_device`, and autocast and inference mode are off: no number depends on what a program has set for itself.

    A tensor that is made in inference mode has no gradient ever after, so a learner must not be made in it.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(usual_device())
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        yield


@contextmanager
def with_gradients() -> Iterator[None]:
    """Gradients are computed, also where a program has switched them off for itself."""
    with sys.modules["torch"].enable_grad():
        yield


def check_autocast(device: "torch.device") -> None:
    """Check that the operations of a pass keep their number format.

    Raises:
        ValueError: autocast is on.
    """
    if sys.modules["torch"].is_autocast_enabled(device.type):
        raise ValueError("autocast changes the number format of single operations: leave it before the model is run")
