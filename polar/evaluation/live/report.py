"""The results of a live evaluation: tables, JSON, texts for TensorBoard, a file of transmissions."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polar.code.decoders import KNOWLEDGE
from polar.evaluation.live.measures import TEXT_KINDS, Live
from polar.evaluation.live.rounds import Round
from polar.evaluation.live.session import Session
from polar.evaluation.live.texts import Continuation, TextKind
from polar.evaluation.report import DECODER_LINE, STATE_LINE, law_fingerprint
from wm_env.common.events import EventWriter
from wm_env.common.files import write_text
from wm_env.common.foreign.visible import visible
from wm_env.common.tables import aligned_table, or_dash, with_interval

_TAIL = 80
"""Characters of the prompt that are shown in front of a sample."""


def live_content(session: Session, rounds: Sequence[Round], live: Live) -> dict[str, Any]:
    """The content of live.json."""
    meta = session.tree.meta
    return {
        "tree": session.tree.fingerprint,
        "law": law_fingerprint(session.law),
        "model": meta.model,
        "model_fingerprint": meta.model_fingerprint,
        "temperature": meta.temperature,
        "pool": meta.pool,
        "texts": len(rounds),
        "seed": session.settings.seed,
        "message_bits": "auto" if session.lengths_follow_state else session.longest,
        "draws_of_keyed_pools": 1 << session.longest,
        **asdict(live),
    }


_LEGEND = f"""\
bits/block   message bits per block, mean
{DECODER_LINE};
             auto, for lengths that follow the state; text, for keyed texts, where a block belongs to one word
{STATE_LINE}
blocks       blocks that carried bits
BER, BLER    fractions of message bits that are wrong, mean over blocks, and of blocks with a wrong one
unmatched    blocks of the text that are no candidate of their state
ambiguous    texts whose bytes can be cut into blocks in more than one way
detector     likelihood ratio, of the two laws, averaged over keys and messages; likelihood, of the text under the model
AUC          probability that the detector gives a watermarked text the higher score than a plain one; exact, by
             enumeration instead of from these texts
TV           total variation between the two laws, or a bound on it
no AUC above 1/2 + TV - TV^2/2, which no detector exceeds"""


def legend(session: Session) -> str:
    """What the four kinds of texts and the columns of the tables are."""
    meta, draws = session.tree.meta, 1 << session.longest
    return "\n".join(
        [
            f"run    watermarked by the law of the run, on the {visible(meta.pool)} pools of its tree",
            f"keyed  watermarked on sampled pools: {draws} draws from the untruncated model with a key for every text",
            "model  plain text of the untruncated model",
            "cover  plain text of the tree: the model truncated to its pools",
            "",
            f"What the columns mean\n{_LEGEND}",
        ]
    )


def text_error_table(live: Live) -> str:
    """Error rates of messages that were read from bytes."""
    rows = [
        ["texts", "bits/block", "decoder", "state", "blocks", "BER, 95 % interval", "BLER", "unmatched", "ambiguous"]
    ]
    for row in live.errors:
        read = [row.texts, f"{row.message_bits:.2f}", row.decoder, KNOWLEDGE[row.state_knowledge], str(row.blocks)]
        wrong = [with_interval(row.ber, row.ber_ci95), f"{row.bler:.4f}", str(row.unmatched), str(row.ambiguous)]
        rows.append(read + wrong)
    return aligned_table(rows)


def likelihood_table(live: Live) -> str:
    """Exact chain-rule figures of the texts under the untruncated model."""
    rows = [["texts", "temperature", "bits/token, 95 % interval", "perplexity, 95 % interval"]]
    for row in live.likelihoods:
        bits = with_interval(row.bits_per_token, row.bits_per_token_ci95, ".3f")
        perplexity = with_interval(row.perplexity, row.perplexity_ci95, ".5g", ".4g")
        rows.append([row.texts, f"{row.temperature:g}", bits, perplexity])
    return aligned_table(rows)


def detection_table(live: Live) -> str:
    """What observers who know the model and not the key achieve, and what total variation allows."""
    rows = [["watermarked", "plain", "detector", "AUC, 95 % interval", "exact", "TV", "no AUC above"]]
    for row in live.detections:
        known = [or_dash(value) for value in (row.auc_exact, row.tv, row.auc_bound)]
        rows.append([row.marked, row.plain, row.score, with_interval(row.auc, row.auc_ci95), *known])
    return aligned_table(rows)


def save_transmissions(session: Session, rounds: Sequence[Round], path: Path) -> None:
    """One line of JSON per text: its prompt, its blocks, its surprise -log2 p under the model at the tree's temperature
    and at 1, what was sent and what was read; whole or not at all.
    """
    lines = [
        json.dumps(_transmission(session, number, played, kind), ensure_ascii=False)
        for number, played in enumerate(rounds)
        for kind in TEXT_KINDS
    ]
    write_text(path, "\n".join(lines) + "\n")


def save_samples(session: Session, rounds: Sequence[Round], folder: Path, count: int = 10) -> None:
    """The first texts of every kind for TensorBoard's TEXT tab, blocks in brackets with the bits they carry."""
    with EventWriter(folder) as writer:
        for kind in TEXT_KINDS:
            texts = [marked_sample(session, getattr(played, kind)) for played in rounds[:count]]
            # Indented lines are shown as they are, whatever characters a model writes.
            body = "\n\n".join(f"    {text}" for text in texts)
            writer.add_text(f"live/{kind}", body, 0)


def first_samples(session: Session, played: Round) -> str:
    """A marked text of every kind, one a line."""
    return "\n".join(f"{kind:5}  {marked_sample(session, getattr(played, kind))}" for kind in TEXT_KINDS)


def marked_sample(session: Session, text: Continuation) -> str:
    """The end of the prompt, then every block in brackets, with its bits where it carries some; one printable line."""
    words = _words(text.message, text.message_bits)
    blocks = [f"⟦{block.decode()}⟧{word}" for block, word in zip(text.blocks, words, strict=True)]
    line = f"…{session.tree.prompts[text.prompt][-_TAIL:]} {''.join(blocks)}"
    return "".join(map(_printable, line))


def _printable(character: str) -> str:
    """The character, or how Python escapes it: a terminal obeys control characters."""
    if character == "\n":
        return "⏎"
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _transmission(session: Session, number: int, played: Round, kind: TextKind) -> dict[str, Any]:
    text: Continuation = getattr(played, kind)
    line: dict[str, Any] = {
        "number": number,
        "texts": kind,
        "prompt": session.tree.prompts[text.prompt],
        "blocks": [block.decode() for block in text.blocks],
        "surprise_bits": text.bits,
        "surprise_bits_at_temperature_1": text.natural_bits,
    }
    received = {"run": played.run_received, "keyed": played.keyed_received}.get(kind)
    if received is not None:
        line["sent"] = _words(text.message, text.message_bits)
        line["read"] = {
            " ".join(who): _words(message, received.message_bits[who]) for who, message in received.messages.items()
        }
        line["matched_blocks"] = received.matched
        line["readings"] = received.readings
    return line


def _words(message: Sequence[int], lengths: Sequence[int]) -> list[str]:
    """Messages in binary; "" for one without bits."""
    return [f"{word:0{bits}b}" if bits else "" for word, bits in zip(message, lengths, strict=True)]
