"""Two holders of one key: what an observer without the key learns from two texts, one of whose messages is known.

The attack is against the derivation of version 0.1, written here anew: pads depend on key, nonce, scheme and label, and
the frame is header, payload and check value, xored with the pad. Both texts then follow points that differ by the xor
of the frames, so who knows one message and can read the choices of both texts reads the other.
"""

import hashlib
import hmac
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from scipy.stats import chisquare

from polar.text.arithmetic import ArithmeticSender
from polar.text.keys.derivation import KeyStream, MessageKeys, message_keys, text_hash
from polar.text.keys.key import Key
from polar.text.schemes.block import Block
from polar.text.schemes.parallel import Parallel
from polar.text.schemes.stream import Stream
from polar.text.settings import LawSettings, Settings

BITS = 128
PAIRS = 100


def old_stream(key, nonce, label, length):
    """The pad of version 0.1: HKDF (RFC 5869) and ChaCha20, by the standard library and the cipher alone."""
    pseudo = hmac.new(bytes(32), key, hashlib.sha256).digest()
    info = b"\0".join((b"covert-watermark 1", b"stream", label, nonce.to_bytes(8, "big")))
    derived = hmac.new(pseudo, info + b"\x01", hashlib.sha256).digest()
    stream = Cipher(ChaCha20(derived, bytes(16)), mode=None).encryptor().update(bytes(length // 8))
    return int.from_bytes(stream, "big")


def old_point(key, nonce, message):
    """The first `BITS` bits of the point of version 0.1: header, payload, check value and zeros behind, xor pad."""
    body = bytes([1 << 6 | len(message)]) + message
    derived = old_stream(key, nonce, b"check", 256).to_bytes(32, "big")
    check = hmac.new(derived, (8 * len(body)).to_bytes(8, "big") + body, hashlib.sha256).digest()[:4]
    frame = (body + check).ljust(BITS // 8, b"\0")
    return int.from_bytes(frame, "big") ^ old_stream(key, nonce, b"pad", BITS)


def new_point(key, nonce, message, prompt):
    """What the sender of this version follows, from the choices that it makes between equally likely options."""
    keys = message_keys(Key(key), nonce, Settings(), text_hash(prompt))
    sender, point = ArithmeticSender(message, keys, 10**6, 10**6), 0
    for _ in range(BITS // 8):
        point = point << 8 | sender.choose([1] * 256, lambda text, position: None)
    return point


def attack(first, second, known):
    """The message of the second text, from both texts and the message of the first: xor of the points, known header."""
    size = 8 * (1 + len(known))
    known_bits = int.from_bytes(bytes([1 << 6 | len(known)]) + known, "big")
    guess = (first >> BITS - size) ^ (second >> BITS - size) ^ known_bits
    return (guess & ((1 << 8 * len(known)) - 1)).to_bytes(len(known), "big")


def attack_new(first, second, known):
    """The same against this version, wherever in the first bits the message may stand."""
    length = 8 * len(known)
    difference = first ^ second
    return {
        ((difference >> shift & ((1 << length) - 1)) ^ int.from_bytes(known, "big")).to_bytes(len(known), "big")
        for shift in range(BITS - length + 1)
    }


@pytest.mark.parametrize("prompts", [("the year", "the year"), ("the year", "the end")], ids=["same", "different"])
def test_the_attack_reads_the_old_version_and_not_this_one(prompts):
    rng = np.random.default_rng(7)
    read_old = read_new = 0
    for _ in range(PAIRS):
        key, nonce = rng.bytes(32), int(rng.integers(100))
        known, secret = rng.bytes(6), rng.bytes(6)
        read_old += attack(old_point(key, nonce, known), old_point(key, nonce, secret), known) == secret
        points = [
            new_point(key, nonce, message, prompt) for message, prompt in zip((known, secret), prompts, strict=True)
        ]
        read_new += secret in attack_new(*points, known)
    assert (read_old, read_new) == (PAIRS, 0)


def test_the_difference_of_two_points_is_uniform_even_if_all_else_is_equal():
    """Bytes of the xor of two points, 300 pairs of messages under one nonce behind one prompt."""
    rng = np.random.default_rng(8)
    counts = np.zeros(256, dtype=np.int64)
    for _ in range(300):
        key = rng.bytes(32)
        first, second = (new_point(key, 0, rng.bytes(8), "the year") for _ in range(2))
        # Check value, header and 8 bytes of payload: 104 bits.
        counts += np.bincount(list((first ^ second).to_bytes(16, "big")[:13]), minlength=256)
    assert chisquare(counts).pvalue > 1e-3


def test_equal_messages_under_equal_circumstances_give_equal_texts():
    """What is left when everything is equal: an observer sees that the message is the same."""
    key = bytes(range(32))
    assert new_point(key, 0, b"again", "a") == new_point(key, 0, b"again", "a")
    assert new_point(key, 0, b"again", "a") != new_point(key, 0, b"other", "a")


def uses():
    """Keys of uses that differ in one thing from the first."""
    law = LawSettings()
    base = {"settings": Settings(Stream(), law), "prompt": "a", "nonce": 0}
    changes = [
        {},
        {"nonce": 1},
        {"prompt": "b"},
        {"settings": Settings(Stream(), law, sender="Bob")},
        {"settings": Settings(Stream(), law, check_bits=64)},
        {"settings": Settings(Stream(), LawSettings(temperature=0.9))},
        {"settings": Settings(Stream(), LawSettings(top_p=0.9))},
        {"settings": Settings(Stream(), LawSettings(block_length=4))},
        {"settings": Settings(Stream(), LawSettings(form="any"))},
        {"settings": Settings(Block(), law)},
        {"settings": Settings(Block(candidates=32), law)},
        {"settings": Settings(Parallel(), law)},
        {"settings": Settings(Parallel(parity=9), law)},
    ]
    for change in changes:
        use = base | change
        yield message_keys(Key(bytes(32)), use["nonce"], use["settings"], text_hash(use["prompt"]))


LABELS = ("pad", "seal", "token ends", "angles", "members", "tail", "pool", "labels", "choices", "check")
LABELS += ("plain draws", "message that was read")


def test_uses_that_differ_in_anything_share_no_draws():
    """Shared draws of two uses agree as often as chance has it: chi-square of the differences mod 16 of 300 draws
    for every pair of nine uses.
    """
    for first, second in combinations(list(uses())[:9], 2):
        one, other = first.stream("token ends"), second.stream("token ends")
        differences = [(one.below(16) - other.below(16)) % 16 for _ in range(300)]
        assert chisquare(np.bincount(differences, minlength=16)).pvalue > 1e-4


def test_no_two_of_many_texts_share_a_derived_stream():
    """1,000 texts of one key, all labels, and every use above: no derived key occurs twice."""
    derived = [keys.derive(label) for keys in uses() for label in LABELS]
    settings = Settings()
    for nonce in range(1000):
        keys = message_keys(Key(bytes(32)), nonce + 2, settings, text_hash("a"))
        derived += [keys.derive(label) for label in LABELS]
    assert len(set(derived)) == len(derived)


def test_a_derived_key_is_hkdf_of_rfc_5869():
    secret, use = bytes(range(32)), bytes(range(32, 64))
    pseudo = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    parts = (b"covert-watermark 3", use, (5).to_bytes(8, "big"), b"pad", b"about")
    info = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    expected = hmac.new(pseudo, info + b"\x01", hashlib.sha256).digest()
    assert MessageKeys(Key(secret), 5, use).derive("pad", b"about") == expected
    assert KeyStream(expected).leading(64) == MessageKeys(Key(secret), 5, use).stream("pad", b"about").leading(64)


def test_what_the_sender_alone_draws_depends_on_the_message():
    keys = MessageKeys(Key(bytes(32)), 0, bytes(32))
    assert keys.derive("tail", b"1") != keys.derive("tail", b"2")
