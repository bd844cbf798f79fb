"""The figures of a live evaluation: error rates from text, likelihoods, and what an observer makes of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from polar.code.decoders import Knowledge
from polar.evaluation.covertness import text_variation, untruncated_bound
from polar.evaluation.detection import auc, auc_bound, auc_interval, likelihood_ratio_auc
from polar.evaluation.live.reading import Received, ReceiverName
from polar.evaluation.live.rounds import Round
from polar.evaluation.live.session import Session
from polar.evaluation.live.texts import Continuation, TextKind
from wm_env.common.arrays import Floats
from wm_env.common.intervals import block_interval, mean_interval
from wm_env.law import occupations
from wm_env.tree import StateTree

TEXT_KINDS: tuple[TextKind, ...] = ("run", "keyed", "model", "cover")

_LARGEST = 10**7
"""Most texts of a tree over which the exact AUC is summed."""


@dataclass(frozen=True)
class Errors:
    """Error rates of one decoder on texts that were read back from their bytes.

    Attributes:
        texts: which texts it read: "run", of the run's law, or "keyed", of sampled pools.
        decoder: sc, ml or map; "auto" for lengths that follow the state; "text" for keyed texts, whose candidates
            belong to one word each.
        state_knowledge: marginal or path.
        blocks: number of blocks that carried bits.
        message_bits: bits per block, mean over all blocks.
        ber: fraction of wrong bits, mean over blocks; 1 where a block was read with another length.
        ber_ci95: its Clopper-Pearson 95 % interval over blocks.
        bler: fraction of blocks with a wrong bit.
        unmatched: number of blocks that equal no candidate of their state.
        ambiguous: texts that can be cut into blocks in more than one way.
    """

    texts: TextKind
    decoder: str
    state_knowledge: Knowledge
    blocks: int
    message_bits: float
    ber: float
    ber_ci95: tuple[float, float]
    bler: float
    unmatched: int
    ambiguous: int


@dataclass(frozen=True)
class TextLikelihood:
    """Exact chain-rule figures of one kind of text under the untruncated model, with 95 % t-intervals over texts.

    Attributes:
        texts: which.
        temperature: of the model: the tree's, whose law plain texts have, or 1, for the quality of the text.
        bits_per_token: -log2 p / tokens.
        bits_per_token_ci95: its interval.
        perplexity: 2^bits_per_token.
        perplexity_ci95: its interval.
    """

    texts: TextKind
    temperature: float
    bits_per_token: float
    bits_per_token_ci95: tuple[float, float]
    perplexity: float
    perplexity_ci95: tuple[float, float]


@dataclass(frozen=True)
class DetectorFigures:
    """How well one detector tells two kinds of texts apart, one text at a time, its prompt known.

    Attributes:
        marked: watermarked texts.
        plain: plain texts.
        score: "likelihood ratio", log p_marked - log p_plain with both laws known and averaged over keys and messages;
            or "likelihood", log p_plain.
        auc: area under the ROC curve over the texts; of the likelihood, which may be higher or lower in marked texts,
            the area for higher.
        auc_ci95: its 95 % score interval.
        tv: total variation between the two laws, or a bound on it; the mean over prompts.
        auc_bound: 1/2 + TV - TV^2/2, what no detector exceeds.
        auc_exact: of the likelihood ratio, exactly, where it can be computed; else null.
    """

    marked: TextKind
    plain: TextKind
    score: str
    auc: float
    auc_ci95: tuple[float, float]
    tv: float | None
    auc_bound: float | None
    auc_exact: float | None


@dataclass(frozen=True)
class Live:
    """Everything that a live evaluation found.

    Attributes:
        errors, likelihoods, detections: the tables.
        plain_in_tree: texts of the untruncated model that the tree contains.
        redrawn: blocks of these texts that were drawn again because they were not text.
    """

    errors: tuple[Errors, ...]
    likelihoods: tuple[TextLikelihood, ...]
    detections: tuple[DetectorFigures, ...]
    plain_in_tree: int
    redrawn: int


def measure_rounds(session: Session, rounds: Sequence[Round]) -> Live:
    """All figures of at least two rounds."""
    tokens = session.writer.blocks * session.writer.block_length
    temperatures = dict.fromkeys((session.writer.temperature, 1.0))
    return Live(
        errors=tuple(_errors(rounds)),
        likelihoods=tuple(_likelihood(rounds, kind, tau, tokens) for tau in temperatures for kind in TEXT_KINDS),
        detections=tuple(_detections(session, rounds)),
        plain_in_tree=sum(math.isfinite(played.log2_marked["model"]) for played in rounds),
        redrawn=sum(played.model.redrawn for played in rounds),
    )


def _errors(rounds: Sequence[Round]) -> list[Errors]:
    run = [(played.run, played.run_received) for played in rounds]
    keyed = [(played.keyed, played.keyed_received) for played in rounds]
    return [_errors_of(pairs, who) for pairs in (run, keyed) for who in pairs[0][1].messages]


def _errors_of(pairs: Sequence[tuple[Continuation, Received]], who: ReceiverName) -> Errors:
    shares = [
        (sent ^ got).bit_count() / bits if read == bits else 1.0
        for text, received in pairs
        for sent, bits, got, read in zip(
            text.message, text.message_bits, received.messages[who], received.message_bits[who], strict=True
        )
        if bits or read
    ]
    lengths = [bits for text, _ in pairs for bits in text.message_bits]
    return Errors(
        texts=pairs[0][0].kind,
        decoder=who[0],
        state_knowledge=who[1],
        blocks=len(shares),
        message_bits=float(np.mean(lengths)),
        ber=float(np.mean(shares)) if shares else 0.0,
        ber_ci95=block_interval(sum(shares), len(shares)) if shares else (0.0, 1.0),
        bler=float(np.mean([share > 0 for share in shares])) if shares else 0.0,
        unmatched=sum(len(text.blocks) - received.matched for text, received in pairs),
        ambiguous=sum(received.readings > 1 for _, received in pairs),
    )


def _likelihood(rounds: Sequence[Round], kind: TextKind, temperature: float, tokens: int) -> TextLikelihood:
    texts: list[Continuation] = [getattr(played, kind) for played in rounds]
    natural = temperature == 1.0
    mean, interval = mean_interval([(text.natural_bits if natural else text.bits) / tokens for text in texts])
    return TextLikelihood(kind, temperature, mean, interval, 2.0**mean, (2.0 ** interval[0], 2.0 ** interval[1]))


def _detections(session: Session, rounds: Sequence[Round]) -> list[DetectorFigures]:
    tree = session.tree
    to_cover = text_variation(tree, [torch.from_numpy(coded)[:, None] for coded in session.coded])
    to_model = untruncated_bound(tree, to_cover)
    model = {kind: [-getattr(played, kind).bits for played in rounds] for kind in TEXT_KINDS}
    marked = {kind: [played.log2_marked[kind] for played in rounds] for kind in ("run", "model", "cover")}
    cover = {kind: [played.log2_cover[kind] for played in rounds] for kind in ("run", "cover")}
    # Averaged over keys a keyed text has the law of the model's own: the ratio is 1 for every text.
    same = [0.0] * len(rounds)
    rows = [
        _detection(("run", "model"), "likelihood", model["run"], model["model"], to_model),
        _detection(
            ("run", "cover"),
            "likelihood ratio",
            _difference(marked["run"], cover["run"]),
            _difference(marked["cover"], cover["cover"]),
            to_cover,
            exact_auc(tree, session.coded),
        ),
        _detection(("keyed", "model"), "likelihood ratio", same, same, 0.0, 0.5),
        _detection(("keyed", "model"), "likelihood", model["keyed"], model["model"], 0.0),
    ]
    if tree.meta.pool == "sampled":
        # The pools of a sampled tree are secret, and how an observer would average over them cannot be computed.
        return rows
    run, plain = (_difference(marked[kind], model[kind]) for kind in ("run", "model"))
    return [_detection(("run", "model"), "likelihood ratio", run, plain, to_model), *rows]


def _difference(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def _detection(
    kinds: tuple[TextKind, TextKind],
    score: str,
    marked: list[float],
    plain: list[float],
    tv: float | None,
    exact: float | None = None,
) -> DetectorFigures:
    area = auc(marked, plain)
    bound = None if tv is None else auc_bound(tv)
    return DetectorFigures(*kinds, score, area, auc_interval(area, len(marked), len(plain)), tv, bound, exact)


def exact_auc(tree: StateTree, coded: Sequence[Floats]) -> float | None:
    """The AUC of the likelihood ratio between the law of the code and the cover over all paths; None if too many.

    A path says at least as much as its text, so no observer of the text does better.
    """
    if tree.blocks[-1].cover.size > _LARGEST:
        return None
    return likelihood_ratio_auc(_paths(tree, coded), _paths(tree, [block.cover for block in tree.blocks]))


def _paths(tree: StateTree, laws: Sequence[Floats]) -> Floats:
    """The probability of every path, by its last state and candidate, (N, Q)."""
    paths: Floats = occupations(tree, laws)[-1][:, None] * laws[-1]
    return paths
