"""What the settings of an evaluation mean for one law: message lengths, keys, message sets and decoders."""

import dataclasses
from typing import Literal

from polar.code.adaptive import AdaptiveSettings
from polar.code.construction import chain_entropies, message_room, threshold_set
from polar.code.decoders import DECODERS, decoder_named
from polar.code.key_schedule import key_bits_of, theorem_key_bits
from polar.evaluation.settings import MOST_KEYS, EvaluationSettings
from wm_env.law import JointLaw
from wm_env.problem import MESSAGE_BITS
from wm_env.runs import RunTask

_DEFAULT_BITS = 5


def decoders_of(settings: EvaluationSettings) -> tuple[str, ...]:
    """The names of the decoders, each once; all that there are if the settings name none.

    Raises:
        ValueError: one is unknown.
    """
    return tuple(dict.fromkeys(decoder_named(name).name for name in settings.decoder)) or tuple(DECODERS)


def fixed_lengths(law: JointLaw, settings: EvaluationSettings) -> tuple[int, ...]:
    """The message lengths in bits per block, ascending; from 1 on, as far as the law carries them, if none is named.

    Raises:
        ValueError: the law does not carry one of them.
    """
    room = _room(law)
    bits = [bits for bits in settings.message_bits if bits != "auto"] or range(1, min(room, _DEFAULT_BITS) + 1)
    return tuple(_carried(each, room) for each in sorted(set(bits)))


def text_length(law: JointLaw, settings: EvaluationSettings, task: RunTask) -> int | Literal["auto"]:
    """The one message length of texts of the language model: as named, as planned, or `MESSAGE_BITS`.

    Raises:
        ValueError: several are named, or the law does not carry it.
    """
    if len(settings.message_bits) > 1:
        raise ValueError('message_bits: texts of the language model take one number, or "auto"')
    if settings.message_bits == ("auto",) or (not settings.message_bits and task.lengths_follow_state):
        return "auto"
    room = _room(law)
    named = [bits for bits in settings.message_bits if bits != "auto"] or [min(MESSAGE_BITS, room)]
    return _carried(named[0], room)


def _room(law: JointLaw) -> int:
    if (room := message_room(law)) < 1:
        raise ValueError("this law carries no message bits: train it with more labels, or plan it with a larger budget")
    return room


def _carried(message_bits: int, room: int) -> int:
    if not 1 <= message_bits <= room:
        raise ValueError(f"message_bits={message_bits}: this law carries 1 to {room} bits per block")
    return message_bits


def key_lengths(law: JointLaw, settings: EvaluationSettings) -> tuple[int, ...]:
    """log2 K of the numbers of keys, ascending; "paper" is as many bits as the paper pads in the block with most.

    Raises:
        ValueError: a number of keys is not a power of two, or too large.
    """
    paper = max(theorem_key_bits(block) for block in law.blocks)
    lengths = sorted({paper if keys == "paper" else key_bits_of(keys) for keys in settings.keys})
    if 1 << lengths[-1] > MOST_KEYS:
        raise ValueError(f"keys={1 << lengths[-1]}: every key is gone through, so at most {MOST_KEYS} are possible")
    return tuple(lengths)


def adaptive_settings(settings: EvaluationSettings, task: RunTask) -> AdaptiveSettings:
    """How well a state must carry its message where the length follows the state.

    Raises:
        ValueError: a number is out of its range.
    """
    dither = task.dither_bits if settings.auto_dither is None else settings.auto_dither
    return AdaptiveSettings(settings.auto_error, settings.auto_tv, dither)


def with_message_sets(law: JointLaw, settings: EvaluationSettings) -> JointLaw:
    """The law with the message sets that the paper's thresholds select, if the settings name thresholds.

    Raises:
        ValueError: a block has no such position.
    """
    if settings.thresholds is None:
        return law
    t_epsilon, t_delta = settings.thresholds
    sets = tuple(threshold_set(chain_entropies(block, law.block_length), t_epsilon, t_delta) for block in law.blocks)
    for number, positions in enumerate(sets, start=1):
        if not positions:
            raise ValueError(
                f"thresholds {t_epsilon:g} {t_delta:g} leave block {number} no message position: raise them"
            )
    return dataclasses.replace(law, message_sets=sets)
