"""What the numbers of a model depend on beyond its weights: number format, device, and the libraries that multiply.

Logits of the same weights differ a little between devices, number formats and library versions. Whoever rebuilds what
another machine computed, as a decoder without a law file does, needs the same stack; this names it.
"""

import platform
from dataclasses import dataclass

import torch
import transformers

from wm_env.common.files import fingerprint
from wm_env.lm.models.masked_lm import MaskedLM


@dataclass(frozen=True)
class Stack:
    """A model as it runs here.

    Attributes:
        model: fingerprint of weights and configuration.
        tokenizer: fingerprint of the tokenizer.
        dtype: number format of the weights.
        device: the card's name, or "cpu" with the instructions that torch uses on it.
        torch: version, with the build.
        transformers: version.
    """

    model: str
    tokenizer: str
    dtype: str
    device: str
    torch: str
    transformers: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all of it: equal on two machines if nothing known to matter differs."""
        return fingerprint({}, vars(self))

    def __str__(self) -> str:
        return (
            f"stack {self.fingerprint[:12]} (model {self.model[:12]}, tokenizer {self.tokenizer[:12]}, {self.dtype} on "
            f"{self.device}, torch {self.torch}, transformers {self.transformers})"
        )


def stack_of(lm: MaskedLM) -> Stack:
    """The stack that `lm` runs on."""
    device = lm.banned.device
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{device.type} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return Stack(
        model=lm.fingerprint,
        tokenizer=lm.tokenizer_fingerprint,
        dtype=str(next(lm.network.parameters()).dtype).removeprefix("torch."),
        device=name,
        torch=torch.__version__,
        transformers=transformers.__version__,
    )
