"""What the receivers of a live evaluation make of bytes, and what the law of the run says of a text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from polar.code.adaptive import DecodedBlock, decode_states
from polar.code.decoders import Knowledge, decision_table, label_evidence, observations, observe, word_evidence
from polar.evaluation.edits import edited_decisions
from polar.evaluation.live.matching import Branch, TextReading, read_blocks
from polar.evaluation.live.session import Session
from polar.evaluation.live.texts import Continuation, KeyedPools, TreePaths
from wm_env.common.arrays import Floats, Ints
from wm_env.lm.build.partial import Context
from wm_env.tree import StateTree

State = tuple[int, int]
"""Block number from 0, row of the state."""
ReceiverName = tuple[str, Knowledge]
"""A decoder and what it knows of the state."""
DecodingTables = dict[ReceiverName, list[DecodedBlock]]
"""What every decoder makes of every block."""


@dataclass(frozen=True)
class Received:
    """What a receiver made of one watermarked text.

    Attributes:
        messages: of every block, by (decoder, knowledge).
        message_bits: their lengths.
        matched: blocks from the front of the text that fit candidates, B if all do.
        readings: ways to cut the whole text into blocks that fit; more than one leave the receiver in doubt.
    """

    messages: dict[ReceiverName, tuple[int, ...]]
    message_bits: dict[ReceiverName, tuple[int, ...]]
    matched: int
    readings: int


def decoding_tables(session: Session) -> DecodingTables:
    """What every decoder makes of every block of the tree."""
    tables: DecodingTables = {}
    if session.lengths_follow_state:
        coded = zip(session.law.blocks, session.codes, observations(session.tree, "path"), strict=True)
        return {("auto", "path"): [decode_states(*each) for each in coded]}
    for knowledge in session.settings.knowledge:
        for number, seen in enumerate(observations(session.tree, knowledge)):
            code = session.codes[number]
            view = observe(session.law.blocks[number], seen)
            evidence, labels = word_evidence(view, code.channels[-1]), label_evidence(view)
            for decoder in session.decoders:
                words = decision_table(decoder, code.codes[-1], evidence, labels)[:, 0][seen].numpy()
                decoded = DecodedBlock(np.full_like(words, session.longest)[:, :, None], words[:, :, None])
                tables.setdefault((decoder, knowledge), []).append(decoded)
    return tables


def edited_tables(session: Session) -> dict[str, list[Ints]]:
    """The words that every decoder returns for what edits leave of a block, (N, Y) for every block; by decoder."""
    coded = list(zip(session.law.blocks, session.codes, session.channels, strict=False))
    return {
        decoder: [edited_decisions(block, code.codes[-1], channel, decoder) for block, code, channel in coded]
        for decoder in session.decoders
        if coded
    }


def read_edited_text(
    session: Session, paths: TreePaths, row: int, tables: dict[str, list[Ints]], rng: np.random.Generator
) -> dict[ReceiverName, tuple[int, ...]]:
    """The messages of text `row` after its blocks were edited, by decoder; receivers know law and key, not the state.

    Every decoder reads the same edited text.
    """
    edited = []
    for number, channel in enumerate(session.channels):
        kernel = channel.kernel[paths.state[row, number], paths.candidate[row, number]].numpy()
        edited.append(int(rng.choice(len(kernel), p=kernel / kernel.sum())))
    pad = paths.key[row] >> session.dither_bits
    return {
        (f"{decoder}, edited", "marginal"): tuple(
            int(table[paths.state[row, number], edited[number]] ^ pad[number]) for number, table in enumerate(of_blocks)
        )
        for decoder, of_blocks in tables.items()
    }


def tree_readings(tree: StateTree, text: bytes, prompts: Iterable[int]) -> tuple[list[TextReading[State]], int]:
    """The readings of a text as paths of the tree from any of the prompts, and the blocks that could be matched."""

    def branches(state: State) -> list[Branch[State]]:
        number, row = state
        block = tree.blocks[number]
        return [
            (string, candidate, (number + 1, int(block.child[row, candidate])))
            for candidate, string in enumerate(block.text[row])
            if block.cover[row, candidate] > 0
        ]

    return read_blocks(text, [(0, prompt) for prompt in prompts], branches, len(tree.blocks))


def log2_law(tree: StateTree, laws: Sequence[Floats], prompt: int, text: bytes) -> float:
    """log2 P(text | prompt) of a law on the tree, in bits; -inf outside.

    `laws` are conditionals of the candidates, (N, Q) for every block.
    """
    readings, _ = tree_readings(tree, text, [prompt])
    total = sum(_weight(laws, reading) for reading in readings)
    return float(np.log2(total)) if total > 0 else -np.inf


def _weight(laws: Sequence[Floats], reading: TextReading[State]) -> float:
    return float(np.prod([laws[number][row, candidate] for (number, row), candidate in reading]))


def read_run_text(session: Session, text: bytes, key: Ints, tables: DecodingTables) -> Received:
    """Decode a text of the run's law; the receiver has the law and the key, not the prompt.

    Of several readings the likeliest counts. A text without one is decoded as if every word were 0, of the largest
    length.
    """
    tree = session.tree
    readings, matched = tree_readings(tree, text, range(len(tree.prior)))
    pad, dither = np.divmod(key, 1 << session.dither_bits)
    sent = [law[:, d] for law, d in zip(session.given_dither, dither, strict=True)]
    likeliest = max(readings, key=lambda path: tree.prior[path[0][0][1]] * _weight(sent, path), default=())
    messages, lengths = {}, {}
    for who, blocks in tables.items():
        words = np.zeros(len(tree.blocks), dtype=np.int64)
        bits = np.full_like(words, session.longest)
        for (number, row), candidate in likeliest:
            where = row, candidate, dither[number]
            words[number], bits[number] = blocks[number].words[where], blocks[number].lengths[where]
        messages[who] = tuple((words ^ pad >> session.longest - bits).tolist())
        lengths[who] = tuple(bits.tolist())
    cuts = {tuple(tree.blocks[number].text[row][x] for (number, row), x in path) for path in readings}
    return Received(messages, lengths, matched, len(cuts))


def read_keyed_text(session: Session, sent: Continuation, context: Context, pools: KeyedPools) -> Received:
    """Decode a text of keyed pools; the receiver has model, prompt and key, and follows the text from pool to pool."""

    def branches(at: Context) -> list[Branch[Context]]:
        keyed = pools.pool(at)
        blocks = zip(keyed.candidates.text, keyed.candidates.tokens.tolist(), strict=True)
        return [
            (text, x, at + tuple(tokens)) for x, (text, tokens) in enumerate(blocks) if keyed.word_of(x) is not None
        ]

    readings, matched = read_blocks(sent.text, [context], branches, session.writer.blocks)
    likeliest = max(
        readings,
        key=lambda path: sum(pools.pool(at).candidates.log2_prob[candidate] for at, candidate in path),
        default=(),
    )
    unread = (0,) * (session.writer.blocks - len(likeliest))
    words = *(pools.pool(at).word_of(candidate) or 0 for at, candidate in likeliest), *unread
    lengths = *(pools.pool(at).code.bits for at, _ in likeliest), *unread
    cuts = {tuple(pools.pool(at).candidates.text[x] for at, x in path) for path in readings}
    who: ReceiverName = "text", "path"
    return Received({who: words}, {who: lengths}, matched, len(cuts))
