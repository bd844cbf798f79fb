"""What the numbers of a model depend on: in exact arithmetic the model alone, in floats also where they are computed.

Logits of the same weights in floats differ a little between devices, number formats and library versions. Whoever
rebuilds what another machine computed, as a decoder without a law file does, needs the same stack; this names it. In
exact arithmetic (`wm_env.lm.models.exact`) the stack is model, tokenizer and version of the arithmetic.
"""

import platform
from dataclasses import dataclass, replace

import torch

from wm_env.common.files import fingerprint
from wm_env.lm.models.exact.products import product_precision
from wm_env.lm.models.masked_lm import MaskedLM


@dataclass(frozen=True)
class Stack:
    """A model as it runs here.

    Attributes:
        model: fingerprint of weights and configuration.
        tokenizer: fingerprint of the tokenizer.
        numbers: version of the exact arithmetic with its number format, or the number format of float arithmetic and
            what reduces it, see `reductions`.
        device: the card's name, or "cpu" with the instructions that torch uses on it; None where it does not matter.
        torch: version, with the build; None likewise.
        transformers: version; None likewise.
    """

    model: str
    tokenizer: str
    numbers: str
    device: str | None = None
    torch: str | None = None
    transformers: str | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all of it: equal on two machines if nothing known to matter differs."""
        return fingerprint({}, {name: value for name, value in vars(self).items() if value is not None})

    def __str__(self) -> str:
        where = (
            "" if self.device is None else f" on {self.device}, torch {self.torch}, transformers {self.transformers}"
        )
        return (
            f"stack {self.fingerprint[:12]} (model {self.model[:12]}, tokenizer {self.tokenizer[:12]}, "
            f"{self.numbers}{where})"
        )


def stack_of(lm: MaskedLM) -> Stack:
    """The stack that `lm` runs on."""
    stack = Stack(model=lm.fingerprint, tokenizer=lm.tokenizer_fingerprint, numbers=lm.number_format)
    if lm.is_exact:
        return stack
    import transformers

    return replace(
        stack,
        numbers=lm.number_format + reductions(lm.banned.device),
        device=device_name(lm.banned.device),
        torch=torch.__version__,
        transformers=transformers.__version__,
    )


def reductions(device: torch.device) -> str:
    """Settings of the process that change numbers in floats: autocast, float32 products of less precision, and ways to
    compute attention that were switched off."""
    found = ""
    if torch.is_autocast_enabled(device.type):
        found += f", autocast to {str(torch.get_autocast_dtype(device.type)).removeprefix('torch.')}"
    if precision := product_precision(device):
        found += f", products of {precision} precision"
    ways = ("flash", "mem_efficient", "math", "cudnn")
    off = [way for way in ways if not getattr(torch.backends.cuda, f"{way}_sdp_enabled")()]
    if off:
        found += f", attention without {' and '.join(off)}"
    return found


def device_name(device: torch.device) -> str:
    """The card's name, or the processor's architecture and the instructions that torch uses: "cpu x86_64 AVX512"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
