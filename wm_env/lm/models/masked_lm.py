"""A masked language model ready for the chain rule, whatever network it is."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from wm_env.common.foreign.torch_settings import check_autocast, usual_device
from wm_env.common.threads import torch_threads
from wm_env.lm.models.exact.law import bits_of, log2_ticks
from wm_env.lm.models.exact.network import VERSION, ExactNetwork
from wm_env.lm.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Network: TypeAlias = "PreTrainedModel | ExactNetwork"

LogitsAt = Callable[[Any, Tensor, int], Tensor]
"""(network, canvas of shape (N, T), position) -> logits of the token at that position, shape (N, V)."""

GUARD_STEP = 2.0**-16
"""Where numbers of a float64 network are rounded before they decide anything."""


@dataclass(frozen=True)
class MaskedLM:
    """A masked-diffusion LM with what the chain rule needs.

    `banned` marks, over all V rows of the LM head, what no text may contain: the mask, ids without a token, and
    every special or reserved token. `fingerprint` covers the configuration and all tensors as stored, so it names
    the model whatever the device and dtype it runs in. `text_tokenizer` turns text into tokens; `open_tokenizer`
    makes that of transformers, which few need and which takes seconds to import. `logits_at` is how the network is
    asked: relatives of LLaDA differ in it. `compiled` says that torch.compile made the kernels of the layers, which
    changes the last bits of what they return.

    An exact network (`wm_env.lm.models.exact`) gives the same law on every machine; one of transformers a law whose
    last bits depend on device, number format and software.
    """

    network: Network
    text_tokenizer: TextTokenizer
    open_tokenizer: Callable[[], "PreTrainedTokenizerFast"]
    name: str
    mask_id: int
    banned: Tensor
    max_length: int
    fingerprint: str
    tokenizer_fingerprint: str
    logits_at: LogitsAt
    compiled: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether its law is the same bits on every machine."""
        return isinstance(self.network, ExactNetwork)

    @property
    def number_format(self) -> str:
        """How it computes: "exact-1 w24", say, or the number format of a network of transformers, such as "float32"."""
        if isinstance(self.network, ExactNetwork):
            return f"{VERSION} {self.network.form.name}"
        return str(self.network.dtype).removeprefix("torch.")

    @property
    def is_guarded(self) -> bool:
        """Whether a network in floats has its logits rounded, see `guarded`."""
        return not isinstance(self.network, ExactNetwork) and self.network.dtype == torch.float64

    @usual_device()
    @torch.no_grad()
    def log2_probs(self, canvas: Tensor, position: int, temperature: float) -> Tensor:
        """log2 p_tau(. | canvas) at one position: p_tau = softmax(logits / tau) over the ids that are not banned.

        Rows are of equal length and carry no padding, so a row's result does not depend on its neighbours. Only the
        wanted position goes through the LM head. On a CPU one thread computes, see `wm_env.common.threads`.

        Args:
            canvas: (N, T) int64 token ids, masks included; T at most `max_length`.
            position: 0..T-1, the same in every row.
            temperature: tau > 0.

        Returns:
            (N, V) float64 in bits, multiples of 2^-40, on the network's device; -inf where banned; each row's
            probabilities sum to 1 within V 2^-40.

        Raises:
            ValueError: shape, length, position or temperature is out of range, or the network returned a NaN.
        """
        self.check_canvas(canvas)
        if not 0 <= position < canvas.shape[1]:
            raise ValueError(f"position {position} is outside a canvas of {canvas.shape[1]} tokens")
        with torch_threads(1):
            logits = self.logits_at(self.network, canvas.to(self.banned.device), position)
            return self.log2_law(guarded(logits) if self.is_guarded else logits, temperature)

    def check_canvas(self, canvas: Tensor) -> None:
        """Check that the model can read `canvas`.

        Raises:
            ValueError: it is not (N, T) int64, or longer than `max_length`; or autocast would change what is computed.
        """
        check_autocast(self.banned.device)
        if canvas.ndim != 2 or canvas.dtype != torch.int64 or 0 in canvas.shape:
            raise ValueError(f"canvas must be int64 of shape (N, T), got {canvas.dtype} of shape {tuple(canvas.shape)}")
        if canvas.shape[1] > self.max_length:
            raise ValueError(f"canvas of {canvas.shape[1]} tokens; {self.name} reads at most {self.max_length}")

    def log2_law(self, logits: Tensor, temperature: float) -> Tensor:
        """log2 softmax(logits / tau) over the ids that are not banned: (N, V) -> (N, V) float64, in bits.

        They are multiples of 2^-40; equal logits give equal laws on every machine (`wm_env.lm.models.exact.law`).

        Raises:
            ValueError: tau is not a positive number, or so small that logits / tau overflows, or there is a NaN.
        """
        if not (0 < temperature < math.inf):
            raise ValueError(f"temperature must be a positive number, got {temperature}")
        if not bool((logits < math.inf).all()):
            raise ValueError(f"{self.name} returned NaN logits; load it in float32 or check the checkpoint")
        try:
            return bits_of(log2_ticks(logits, temperature, self.banned))
        except ValueError:
            raise ValueError(f"temperature={temperature}: too small for the logits of {self.name}") from None

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer of transformers, made once; what others change in it changes no texts here."""
        return self.open_tokenizer()

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`, nothing added.

        The names of added tokens inside the text, special or not, are encoded letter by letter.

        Raises:
            ValueError: the tokenizer still produced an id that no text may contain, or the text is none (halves of
                surrogate pairs).
        """
        ids = self.text_tokenizer.encode(text)
        for token in ids:
            if self.banned[token]:
                name = self.tokenizer.convert_ids_to_tokens(token)
                raise ValueError(f"the text contains {name!r}, which {self.name} keeps for itself; remove it")
        return ids


def guarded(logits: Tensor) -> Tensor:
    """Logits of a float64 network, rounded to multiples of `GUARD_STEP`.

    Logits of two machines differ by about 1e-13, so they round alike unless one lies that near to a boundary between
    two multiples: a chance of about 1e-8 a logit, 1e-4 a law of 10,000 tokens. That is a guard, not a guarantee.
    """
    return logits.div(GUARD_STEP).round_().mul_(GUARD_STEP)


def compiled_lm(lm: MaskedLM) -> MaskedLM:
    """The same model with compiled layers, which pays for large passes on a GPU; the network of `lm` is changed.

    Raises:
        ValueError: the network is not a stack of decoder layers of transformers.
    """
    if isinstance(lm.network, ExactNetwork):
        raise ValueError(f"{lm.name} is computed exactly, which a compiler would not: load it with arithmetic='float'")
    from wm_env.lm.models.forward import compile_layers

    if not is_layer_stack(lm.network):
        raise ValueError(f"{lm.name} is a {type(lm.network).__name__}: only LLaDA and Dream are compiled")
    compile_layers(lm.network)
    return replace(lm, compiled=True)


def is_layer_stack(network: Network) -> bool:
    """Whether a network of transformers has the parts that `wm_env.lm.models.forward.hidden_at` runs: those of Llama
    and Qwen2 are, encoders are not.
    """
    return hasattr(network, "base_model") and hasattr(network.base_model, "layers") and hasattr(network, "lm_head")


def banned_ids(mask_id: int, size: int, tokenizer: TextTokenizer) -> Tensor:
    """(size,) bool over the rows of the LM head: the mask, ids without a token, and every token beside the text's.

    Raises:
        ValueError: the tokenizer has no such mask, or more ids than there are rows.
    """
    vocabulary = tokenizer.ids
    if mask_id not in vocabulary:
        raise ValueError(f"mask_token_id {mask_id} is no token of the tokenizer; they do not belong together")
    if max(vocabulary) >= size:
        raise ValueError(f"the tokenizer has id {max(vocabulary)}, the network only {size} embeddings")
    # LLaDA marks only some of its control tokens as special, but everything it *adds* to the BPE vocabulary is one.
    text = vocabulary - tokenizer.added - {mask_id}
    banned = torch.ones(size, dtype=torch.bool)
    banned[sorted(text)] = False
    return banned
