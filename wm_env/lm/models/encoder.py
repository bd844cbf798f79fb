"""BERT, RoBERTa, ModernBERT: the classes that transformers knows as `AutoModelForMaskedLM`, as a language model.

Such a model was trained to fill in a few masks in a whole text between its special tokens, for example
"<s> text </s>". So the canvas is put between what the tokenizer puts around every text: the model sees

    <s> context, committed tokens, masks to the end of the block </s>

and reads the closing token as the end of the text right behind the block. That is part of the law, as the number of
masks is. A model that was trained to fill in 15 % of a text is used here outside of that: the law is well defined, the
text is poor.

Only the tokens of the canvas count as the text; positions and lengths are those of the canvas. What a token is as text
says `wm_env.lm.text`: tokenizers may be byte-level BPE (RoBERTa, ModernBERT) or WordPiece (BERT).
"""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils import logging

from wm_env.common.files import fingerprint, first_line
from wm_env.lm.models.checkpoint_tokenizer import checkpoint_tokenizer
from wm_env.lm.models.masked_lm import MaskedLM, banned_ids
from wm_env.lm.models.weights import owned, stored_tensors, tensor_digest

_OF_OTHER_HEADS = ("pooler.", "seq_relationship.", "position_ids")
"""Parts of names of tensors that checkpoints hold for other tasks than filling in masks, or that are constants."""

_RESERVED = re.compile(r"\[unused\d+\]|madeupword\d+")
"""Places in BERT's and RoBERTa's vocabularies that were kept free."""


def is_encoder(values: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a class that `AutoModelForMaskedLM` loads."""
    name = MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(str(values.get("model_type")))
    return name is not None and name.endswith("ForMaskedLM") and values.get("architectures") == [name]


def load_encoder(folder: Path, values: Mapping[str, Any], name: str, device: str, dtype: torch.dtype) -> MaskedLM:
    """The checkpoint in `folder`, whose config.json holds `values`; see `wm_env.lm.models.load.load_lm`.

    Raises:
        ValueError: configuration, tensors or tokenizer are not what is implemented here.
        OSError: files are missing.
    """
    made = checkpoint_tokenizer(folder)
    tokenizer = made.open()
    mask_id = tokenizer.mask_token_id
    if mask_id is None:
        raise ValueError(f"{folder}: the tokenizer names no mask token; tokenizer_config.json should have mask_token")
    digests = {key: tensor_digest(tensor) for key, tensor in stored_tensors(folder)}
    _check_layers(values, len(digests))
    network = _load_network(folder, values, device, dtype)
    before, after = surroundings(tokenizer)
    size = network.get_output_embeddings().weight.shape[0]
    shape = {key: value for key, value in values.items() if key not in ("transformers_version", "_name_or_path")}
    banned = banned_ids(mask_id, size, made.text)
    banned[[number for token, number in tokenizer.get_vocab().items() if _RESERVED.fullmatch(token)]] = True
    return MaskedLM(
        network=network,
        text_tokenizer=made.text,
        open_tokenizer=made.open,
        name=name,
        mask_id=mask_id,
        banned=banned.to(device),
        max_length=_positions(network) - len(before) - len(after),
        fingerprint=fingerprint({}, {"kind": "encoder", "config": shape, "tensors": digests}),
        tokenizer_fingerprint=made.fingerprint,
        logits_at=partial(encoder_logits, before=before, after=after, cut=Cut(network)),
    )


class Cut:
    """Cuts what the last matrix of a network is given to one position: a place of its own for each thread."""

    def __init__(self, network: PreTrainedModel) -> None:
        self._own = threading.local()
        network.get_output_embeddings().register_forward_pre_hook(self._cut)

    @contextmanager
    def at(self, place: int) -> Iterator[None]:
        """Within the context the passes of this thread are cut to `place`."""
        self._own.place = place
        try:
            yield
        finally:
            del self._own.place

    def _cut(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        place = getattr(self._own, "place", None)
        return arguments if place is None else (arguments[0][:, place : place + 1], *arguments[1:])


def encoder_logits(
    network: PreTrainedModel,
    canvas: Tensor,
    position: int,
    *,
    before: tuple[int, ...],
    after: tuple[int, ...],
    cut: Cut,
) -> Tensor:
    """Logits of the token at `position` of the canvas, shape (N, V), with special tokens before and after the canvas.

    Heads differ from class to class, but all end in one matrix: its input is cut to the wanted position.
    """
    rows = len(canvas)
    edges = [torch.tensor(ids, dtype=canvas.dtype, device=canvas.device).expand(rows, -1) for ids in (before, after)]
    with cut.at(len(before) + position):
        logits: Tensor = network(input_ids=torch.cat([edges[0], canvas, edges[1]], dim=1)).logits
    return logits[:, 0]


def surroundings(tokenizer: PreTrainedTokenizerFast) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer puts before and after every text; both empty if it adds nothing.

    Raises:
        ValueError: it does not leave the text in the middle as it is.
    """
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a", add_special_tokens=True)["input_ids"]
    for start in range(len(whole) - len(plain) + 1):
        if plain and whole[start : start + len(plain)] == plain:
            return tuple(whole[:start]), tuple(whole[start + len(plain) :])
    raise ValueError("the tokenizer changes a text when it adds special tokens; this is not implemented")


def _check_layers(values: Mapping[str, Any], tensors: int) -> None:
    """Refuse more layers than the file has tensors for, before transformers makes them one by one."""
    for name, value in values.items():
        if name.endswith("layers") and isinstance(value, int) and value > tensors:
            raise ValueError(f"config.json: {name} is {value}, and the checkpoint has {tensors} tensors")


def _load_network(folder: Path, values: Mapping[str, Any], device: str, dtype: torch.dtype) -> PreTrainedModel:
    for flag in ("is_decoder", "is_encoder_decoder", "add_cross_attention"):
        if values.get(flag):
            raise ValueError(f"config.json sets {flag}; only models that look both ways are read")
    options = {"dtype": dtype, "use_safetensors": True, "local_files_only": True, "output_loading_info": True}
    try:
        config = CONFIG_MAPPING[values["model_type"]].from_dict(dict(values))
        with _quiet():
            network, report = MODEL_FOR_MASKED_LM_MAPPING[type(config)].from_pretrained(
                folder, config=config, **options
            )
    except Exception as error:  # each class has its own way to fail on a bad configuration or tensor
        raise ValueError(
            f"{folder}: transformers cannot load this {values['model_type']}: {first_line(error)}"
        ) from None
    # transformers fills what is missing with random numbers and goes on.
    missing = sorted({*report["missing_keys"], *(str(key) for key in report["mismatched_keys"])})
    if missing:
        raise ValueError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]!r}")
    foreign = sorted(key for key in report["unexpected_keys"] if not any(part in key for part in _OF_OTHER_HEADS))
    if foreign:
        raise ValueError(f"{folder}: unexpected tensor {foreign[0]!r}")
    network.requires_grad_(False)
    for parameter in network.parameters():
        parameter.data = owned(parameter, device, parameter.dtype)
    return network.to(device).eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar and no report of transformers; what the report says becomes an error here."""
    bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _positions(network: PreTrainedModel) -> int:
    """Most tokens that the network reads, special ones included."""
    positions = int(network.config.max_position_embeddings)
    table = getattr(getattr(network.base_model, "embeddings", None), "position_embeddings", None)
    # RoBERTa and its kin count positions from behind the padding id on.
    first = 0 if table is None or getattr(table, "padding_idx", None) is None else table.padding_idx + 1
    return positions - first
