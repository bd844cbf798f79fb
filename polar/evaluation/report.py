"""The results of an evaluation: results.json, and plain tables for a terminal."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polar.code.decoders import DECODERS, KNOWLEDGE
from polar.evaluation.edits import EditedPoint
from polar.evaluation.points import AdaptivePoint, CodeFigures, OperatingPoint
from polar.evaluation.whole_texts import WholeTextPoint
from wm_env.common.files import fingerprint, read_json
from wm_env.common.tables import aligned_table, or_dash, with_interval
from wm_env.law import JointLaw
from wm_env.theory.limits import Limit
from wm_env.tree import StateTree

TV_BUDGETS = (0.0, 0.01, 0.05, 0.1)

DECODER_LINE = f"decoder      {'; '.join(f'{decoder.name}, {decoder.rule}' for decoder in DECODERS.values())}"
STATE_LINE = f"""\
state        what the decoder knows of it: {KNOWLEDGE["marginal"]}, nothing but its law; {KNOWLEDGE["path"]}, what
             follows from the blocks received before"""

LEGEND = f"""\
tree         the model that it was made from, mini being the embedded one; top pool: the likeliest blocks of every
             state; sampled pool: keyed draws
retained mass
             probability that a text of that model, before it was truncated, stays inside the tree
H(V_i|V^i-1,S), H(V_i|V^i-1,X)
             for every position i of V, from 0 on, the bits that are left in V_i once the positions before it and the
             state, or the block, are known; near 1 in the first and near 0 in the second row it can carry a message bit
TV           total variation, 0 to 1: how well an observer who knows the model, not the key, tells coded from plain text
TV per block, TV of the text
             of the law itself; train.py bounds the sum over the blocks, and the text has at most that sum
bits, keys   message bits per block, and keys per block, of which the receiver knows the one in use
bits/token   message bits per token
surplus      key bits beyond the message: none, there are none; frozen, they fix further positions of V, as in the
             paper; dither, they shift the draw of the encoder
{DECODER_LINE}
{STATE_LINE}
BER, BLER    fractions of message bits that are wrong and of blocks with a wrong one, exact; measured, BER over texts
limit        no code with this number of bits and the TV of this line has a smaller error, for a decoder that knows at
             most the state, and states as likely as under this law; a code that leads to other states may have less
TV mean, TV max, TV text
             of the code with its keys: of a block, mean and largest over the messages; of whole texts, mean
TV real model <=
             bound on the TV to texts of the model before it was truncated to the tree; for a sampled pool the bound is
             the mean over pools, of which this is one sample
no word      probability that the state allows no word with the bits that are to be sent
points       one for every choice of bits, keys, surplus, decoder and state, all in results.json; a key that only pads
             is no longer than the message
key of l bits, any key
             limits for every use of as many key bits as message bits, and for a key of any length; that of bit errors
             is a bound which codes need not reach"""

_Column = tuple[str, Callable[[OperatingPoint], str]]

_NAMES: tuple[_Column, ...] = (
    ("bits", lambda p: str(p.message_bits)),
    ("bits/token", lambda p: f"{p.rate_bits_per_token:.3f}"),
    ("keys", lambda p: str(p.keys)),
    ("surplus", lambda p: p.surplus_key),
)


RESULTS_MARK = "operating_points"
"""In every results.json, for `wm_env.common.files.check_output`."""


def exact_content(
    tree: StateTree,
    law: JointLaw,
    points: Sequence[OperatingPoint],
    limits: Mapping[int, Limit],
    adapted: AdaptivePoint | None = None,
    live: dict[str, Any] | None = None,
    edited: Sequence[EditedPoint] = (),
    whole: Sequence[WholeTextPoint] = (),
) -> dict[str, Any]:
    """The content of results.json: fingerprints, operating points, one-shot limits, errors after edits,
    messages over whole texts, and `live_results` of the law."""
    rows = [asdict(point) for point in points]
    if adapted is not None:
        rows.append(_adaptive_row(adapted, tree.block_length))
    return {
        "tree": tree.fingerprint,
        "law": law_fingerprint(law),
        "operating_points": rows,
        "limits": [row for bits, limit in limits.items() for row in limit_rows(bits, limit, tree.block_length)],
        "edited": [asdict(point) for point in edited],
        "whole_texts": [asdict(point) for point in whole],
        "live": live,
    }


def law_fingerprint(law: JointLaw) -> str:
    """SHA-256 of the conditionals of all blocks, the message sets and the tree they belong to."""
    arrays = {}
    for number, block in enumerate(law.blocks):
        arrays[f"{number}.p_label"] = block.p_label.numpy()
        arrays[f"{number}.p_candidate"] = block.p_candidate.numpy()
    return fingerprint(arrays, {"tree": law.tree, "message_sets": law.message_sets})


def live_results(folder: Path, law: JointLaw) -> dict[str, Any] | None:
    """What an evaluation with the language model found for this law; None if `folder` has no live.json, or another's.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged.
    """
    content = stored_results(folder / "live.json")
    return content if content is not None and content.get("law") == law_fingerprint(law) else None


def stored_results(path: Path) -> dict[str, Any] | None:
    """The content of the results.json or live.json of an evaluation; None if there is no such file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged.
    """
    if not os.path.lexists(path):
        return None
    try:
        return read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}; remove it, or choose another folder for the results") from None


def limit_rows(message_bits: int, limit: Limit, block_length: int) -> list[dict[str, Any]]:
    """The one-shot optimum of l message bits at every TV budget."""
    return [
        {
            "message_bits": message_bits,
            "rate_bits_per_token": message_bits / block_length,
            "tv_budget": budget,
            "bler": limit.block_error(budget),
            "bler_shared_key": limit.shared_key_block_error(budget),
            "ber": limit.bit_error(budget),
            "zero_error_states": limit.zero_error,
            "proven_within": limit.gap,
        }
        for budget in TV_BUDGETS
    ]


def error_table(points: Sequence[OperatingPoint], limits: Mapping[int, Limit]) -> str:
    """Error rates, one line per operating point, with the one-shot limits at the point's own TV beside them."""

    def block_limit(point: OperatingPoint) -> float:
        limit = limits[point.message_bits]
        shared = point.key_bits > point.message_bits
        return limit.shared_key_block_error(point.tv_mean) if shared else limit.block_error(point.tv_mean)

    return _table(
        points,
        [
            *_NAMES,
            ("decoder", lambda p: p.decoder),
            ("state", lambda p: KNOWLEDGE[p.state_knowledge]),
            ("BER", lambda p: f"{p.ber:.4f}"),
            ("limit", lambda p: f"{limits[p.message_bits].bit_error(p.tv_mean):.4f}"),
            ("measured, 95 % interval", measured),
            ("BLER", lambda p: f"{p.bler:.4f}"),
            ("limit", lambda p: f"{block_limit(p):.4f}"),
        ],
    )


def edited_table(points: Sequence[EditedPoint]) -> str:
    """Error rates behind a channel of edits, one line per length and decoder."""
    rows = [["bits", "decoder", "BER", "BLER"]]
    rows += [[str(point.message_bits), point.decoder, f"{point.ber:.4f}", f"{point.bler:.4f}"] for point in points]
    return aligned_table(rows)


def whole_text_table(points: Sequence[WholeTextPoint]) -> str:
    """Messages over the blocks of a text, one line per number of blocks and error probability."""
    rows = [["blocks", "error at most", "bits", "bits/token", "error", "limit, bits", "TV text"]]
    rows += [
        [
            str(point.blocks),
            f"{point.target:g}",
            str(point.message_bits),
            f"{point.rate_bits_per_token:.4f}",
            f"{point.error:.5f}",
            str(point.limit_bits),
            f"{point.tv_text:.4f}",
        ]
        for point in points
    ]
    return aligned_table(rows)


def covertness_table(points: Sequence[OperatingPoint]) -> str:
    """Total variations, one line per code and key; "real model" is the bound against the untruncated model."""
    codes = {(point.message_bits, point.keys, point.surplus_key): point for point in points}
    return _table(
        list(codes.values()),
        [
            *_NAMES,
            ("TV mean", lambda p: f"{p.tv_mean:.4f}"),
            ("TV max", lambda p: f"{p.tv_max:.4f}"),
            ("TV text", lambda p: or_dash(p.tv_text)),
            ("TV real model <=", lambda p: or_dash(p.tv_untruncated_bound)),
            ("no word", lambda p: f"{p.empty_word:.4f}"),
        ],
    )


def variation_table(points: Sequence[OperatingPoint]) -> str:
    """Mean TV against the number of keys, one line per message length and use of the surplus key."""
    keys = sorted({point.keys for point in points})
    rows = [["bits", "surplus", *(f"{number} keys" for number in keys)]]
    for bits, way, by_keys in variation_curves(points):
        rows.append([str(bits), way, *(or_dash(by_keys.get(number)) for number in keys)])
    return aligned_table(rows)


def variation_curves(points: Sequence[OperatingPoint]) -> list[tuple[int, str, dict[int, float]]]:
    """(message bits, use of the surplus key, keys -> mean TV), the curves of the TV figure."""
    curves = []
    for bits in sorted({point.message_bits for point in points}):
        mine = [point for point in points if point.message_bits == bits]
        ways = sorted({point.surplus_key for point in mine} - {"none"}, reverse=True) or ["none"]
        for way in ways:
            curves.append(
                (bits, way, {point.keys: point.tv_mean for point in mine if point.surplus_key in ("none", way)})
            )
    return curves


def limit_table(limits: Mapping[int, Limit]) -> str:
    """The one-shot optimum of the tree: block error with an l-bit key, with more key, and bit error."""
    lines = [
        ("block error, key of l bits", Limit.block_error),
        ("block error, any key", Limit.shared_key_block_error),
        ("bit error, any key", Limit.bit_error),
    ]
    rows = [["bits", "limit", *(f"TV {budget:g}" for budget in TV_BUDGETS), "states with zero error at TV 0"]]
    for bits, limit in limits.items():
        for name, value in lines:
            errors = [f"{value(limit, budget):.4f}" for budget in TV_BUDGETS]
            rows.append([str(bits), name, *errors, f"{limit.zero_error:.3f}"])
    return aligned_table(rows)


def adaptive_table(point: AdaptivePoint, block_length: int) -> str:
    """Messages whose length follows the state, decoded along the path."""
    lengths = ", ".join(f"{bits}: {share:.3f}" for bits, share in enumerate(point.share_by_length))
    return "\n".join(
        [
            f"{point.mean_bits:.3f} bits per block, {point.mean_bits / block_length:.4f} bits per token "
            f"(limit at this TV without errors, length by state and key, {point.limit / block_length:.4f}); "
            f"dither {point.dither_bits} bits; share of states by bits {lengths}",
            f"BER {point.ber:.4f} (measured {measured(point)}), BLER {point.bler:.4f}, TV mean {point.tv_mean:.4f}, "
            f"TV max {point.tv_max:.4f}, TV text {or_dash(point.tv_text)}, "
            f"TV real model <= {or_dash(point.tv_untruncated_bound)}",
        ]
    )


def _adaptive_row(point: AdaptivePoint, block_length: int) -> dict[str, Any]:
    return {
        "message_bits": "auto",
        "rate_bits_per_token": point.mean_bits / block_length,
        "key_bits": point.longest + point.dither_bits,
        "keys": 1 << point.longest + point.dither_bits,
        "surplus_key": "dither" if point.dither_bits else "none",
        "decoder": "auto",
        "state_knowledge": "path",
        **asdict(point),
    }


def measured(point: CodeFigures) -> str:
    """The measured bit error rate with its interval, or a dash if nothing was sent."""
    if point.ber_mc is None or point.ber_mc_ci95 is None:
        return "-"
    return with_interval(point.ber_mc, point.ber_mc_ci95)


def _table(points: Sequence[OperatingPoint], columns: Sequence[_Column]) -> str:
    return aligned_table([[title for title, _ in columns]] + [[show(point) for _, show in columns] for point in points])
