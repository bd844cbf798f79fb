"""Exact evaluation of a law as a code: error rates by enumeration of states, words, keys and candidates.

Everything is per operating point: message length, key and its use, decoder and its knowledge. Rates are averages over
the blocks of a text, each block with the state law Z of the law that is evaluated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polar.code.codec import code_channel, dither_runs
from polar.code.construction import BlockCode, chain_entropies, design_codes
from polar.code.decoders import (
    Knowledge,
    LabelEvidence,
    decision_table,
    label_evidence,
    observations,
    observe,
    word_evidence,
)
from polar.code.key_schedule import KeySchedule, Surplus
from polar.evaluation.choices import decoders_of, fixed_lengths, key_lengths
from polar.evaluation.covertness import message_laws, message_variations, text_variation, untruncated_bound
from polar.evaluation.montecarlo import SentBlocks, estimate_errors, receive, send_blocks
from polar.evaluation.points import OperatingPoint
from polar.evaluation.settings import EvaluationSettings
from wm_env.coded import empty_words, label_bits
from wm_env.common.arrays import Floats, Ints
from wm_env.law import BlockLaw, JointLaw
from wm_env.tree import StateTree

_Receives = tuple[str, Knowledge]
"""A decoder and what it knows of the state."""


@dataclass(frozen=True)
class _Receiver:
    """The law of a block as one kind of receiver sees it, observations for symbols, and what they say about V."""

    law: BlockLaw
    labels: LabelEvidence


@dataclass(frozen=True)
class _Block:
    """What a code does to one block.

    Attributes:
        channel: P(x | w, s) averaged over the surplus, shape (N, 2^l, 1, Q).
        rates: exact bit and block error rate of every receiver, shape (2,).
        received: what every receiver reads of the transmissions under every schedule, shape (T,) each.
    """

    channel: Tensor
    rates: dict[_Receives, Floats]
    received: dict[_Receives, list[Ints]]


def evaluate(tree: StateTree, law: JointLaw, settings: EvaluationSettings) -> list[OperatingPoint]:
    """All operating points, in the order of message lengths, keys, decoders and knowledge.

    Frozen key bits need free positions of V; points for which there are too few are left out. Dither needs none.

    Raises:
        ValueError: a message length that the labels or the law's message set do not allow, or a number of keys that is
            not a power of two.
    """
    chains = [chain_entropies(block, law.block_length) for block in law.blocks]
    receivers = _receivers(tree, law, settings.knowledge)
    points: list[OperatingPoint] = []
    decoders, lengths = decoders_of(settings), fixed_lengths(law, settings)
    for bits in lengths:
        for schedules in schedule_groups(law, bits, settings):
            codes = design_codes(law, chains, schedules[0])
            points += _points_of_code(tree, law, codes, schedules, receivers, decoders, settings)
    ways = ["none", "frozen", "dither"]
    return sorted(points, key=lambda point: (point.message_bits, point.keys, ways.index(point.surplus_key)))


def schedule_groups(law: JointLaw, message_bits: int, settings: EvaluationSettings) -> list[list[KeySchedule]]:
    """The key schedules of a message length; those of one group share the code and differ in the pad only."""
    room = _free_positions(law, message_bits)
    groups: dict[tuple[Surplus, int], list[KeySchedule]] = {}
    for key_bits in key_lengths(law, settings):
        for surplus in settings.surplus:
            schedule = KeySchedule(message_bits, key_bits, surplus)
            spare = schedule.surplus_bits
            if spare == 0:
                groups.setdefault(("frozen", 0), []).append(schedule)
                break
            if surplus == "dither" or spare <= room:
                groups[surplus, spare] = [schedule]
    return list(groups.values())


def left_out(law: JointLaw, settings: EvaluationSettings) -> list[tuple[int, int]]:
    """(message bits, keys) of settings with frozen surplus that need more positions of V than the law has."""
    return [
        (bits, 1 << key_bits)
        for bits in fixed_lengths(law, settings)
        for key_bits in key_lengths(law, settings)
        if "frozen" in settings.surplus and key_bits - bits > _free_positions(law, bits)
    ]


def _free_positions(law: JointLaw, message_bits: int) -> int:
    """Positions of V beside the message that are not the same in all labels."""
    return min(label_bits(block.labels) for block in law.blocks) - message_bits


def error_rates(evidence: Tensor, decisions: Tensor) -> tuple[float, float]:
    """Exact bit and block error rate of one block; the pad cancels.

    Args:
        evidence: P(o, w, e), shape (observations, 2^l, E), see `decoders.word_evidence`.
        decisions: word for (o, e), shape (observations, E).
    """
    words = torch.arange(evidence.shape[1])
    bits = evidence.shape[1].bit_length() - 1
    total = evidence.sum(1)
    wrong_bits = 0.0
    for bit in range(bits):
        ones = evidence[:, words >> bit & 1 == 1].sum(1)
        wrong_bits += float(torch.where(decisions >> bit & 1 == 1, total - ones, ones).sum())
    right = float(evidence.gather(1, decisions[:, None, :]).sum())
    return max(wrong_bits / bits, 0.0), max(1 - right, 0.0)


def _receivers(tree: StateTree, law: JointLaw, known: Sequence[Knowledge]) -> list[dict[Knowledge, _Receiver]]:
    """The receivers of every block, by what they know of the state."""
    columns = []
    for knowledge in known:
        laws = map(observe, law.blocks, observations(tree, knowledge))
        columns.append([_Receiver(seen, label_evidence(seen)) for seen in laws])
    return [dict(zip(known, receivers, strict=True)) for receivers in zip(*columns, strict=True)]


def _evaluate_block(
    law: BlockLaw,
    code: BlockCode,
    receivers: dict[Knowledge, _Receiver],
    decoders: Sequence[str],
    transmissions: Sequence[tuple[KeySchedule, SentBlocks]],
) -> _Block:
    """Enumerate the channel of a block and decode the transmissions of every schedule, one run of dithers at a time."""
    everyone: list[_Receives] = [(decoder, knowledge) for knowledge in receivers for decoder in decoders]
    average = torch.zeros(len(law.cover), code.words, 1, law.cover.shape[1], dtype=torch.float64)
    rates = {who: np.zeros(2) for who in everyone}
    received = {who: [np.zeros_like(sent.message) for _, sent in transmissions] for who in everyone}
    for dithers in dither_runs(law, code):
        channel = code_channel(law, code, dithers)
        share = channel.shape[2] / code.surplus_words
        average += share * channel.mean(2, keepdim=True)
        for knowledge, receiver in receivers.items():
            evidence = word_evidence(receiver.law, channel)
            for decoder in decoders:
                decisions = decision_table(decoder, code, evidence, receiver.labels)
                rates[decoder, knowledge] += share * np.array(error_rates(evidence, decisions))
                for (schedule, sent), messages in zip(transmissions, received[decoder, knowledge], strict=True):
                    frozen, dither = np.divmod(schedule.surplus_word(sent.key), 1 << code.dither_bits)
                    rows = (dither >= dithers.start) & (dither < dithers.stop)
                    column = (frozen * len(dithers) + dither - dithers.start)[rows]
                    messages[rows] = receive(sent.at(rows), schedule, receiver.law.symbol, decisions, column)
    return _Block(average, rates, received)


def _points_of_code(
    tree: StateTree,
    law: JointLaw,
    codes: Sequence[BlockCode],
    schedules: Sequence[KeySchedule],
    receivers: Sequence[dict[Knowledge, _Receiver]],
    decoders: Sequence[str],
    settings: EvaluationSettings,
) -> Iterator[OperatingPoint]:
    """The operating points of one code: every decoder and knowledge, under every pad."""
    sent = [_send(law, codes, schedule, settings) for schedule in schedules]
    blocks = [
        _evaluate_block(block, code, mine, decoders, list(zip(schedules, of_block, strict=True)))
        for block, code, mine, of_block in zip(law.blocks, codes, receivers, zip(*sent, strict=True), strict=True)
    ]
    empty = _empty_word(law, codes)
    for number, schedule in enumerate(schedules):
        laws = [message_laws(block.channel, schedule.pad_bits) for block in blocks]
        variations = [message_variations(block, of_message) for block, of_message in zip(law.blocks, laws, strict=True)]
        tv_text = text_variation(tree, laws)
        for decoder, knowledge in blocks[0].rates:
            ber, bler = np.mean([block.rates[decoder, knowledge] for block in blocks], axis=0).tolist()
            received = [block.received[decoder, knowledge][number] for block in blocks]
            ber_mc, ber_mc_ci95 = None, None
            if settings.transmissions:
                messages = [of_block.message for of_block in sent[number]]
                ber_mc, ber_mc_ci95 = estimate_errors(messages, received, schedule.message_bits)
            yield OperatingPoint(
                message_bits=schedule.message_bits,
                rate_bits_per_token=schedule.message_bits / law.block_length,
                key_bits=schedule.key_bits,
                keys=1 << schedule.key_bits,
                surplus_key=schedule.surplus if schedule.surplus_bits else "none",
                decoder=decoder,
                state_knowledge=knowledge,
                ber=ber,
                bler=bler,
                tv_mean=float(torch.stack([values.mean() for values in variations]).mean()),
                tv_max=max(float(values.max()) for values in variations),
                tv_text=tv_text,
                tv_untruncated_bound=untruncated_bound(tree, tv_text),
                empty_word=empty,
                ber_mc=ber_mc,
                ber_mc_ci95=ber_mc_ci95,
            )


def _empty_word(law: JointLaw, codes: Sequence[BlockCode]) -> float:
    """Probability, averaged over the blocks, that no word V has the wanted bits."""
    missing = [
        float(empty_words(block, law.block_length, code.message_set + code.frozen_set))
        for block, code in zip(law.blocks, codes, strict=True)
    ]
    return float(np.mean(missing))


def _send(
    law: JointLaw, codes: Sequence[BlockCode], schedule: KeySchedule, settings: EvaluationSettings
) -> list[SentBlocks]:
    """The transmissions of every block, the same for every receiver."""
    way = ("frozen", "dither").index(schedule.surplus)
    rng = np.random.default_rng([settings.seed, schedule.message_bits, schedule.key_bits, way])
    return [
        send_blocks(block, code, schedule, settings.transmissions, rng)
        for block, code in zip(law.blocks, codes, strict=True)
    ]
