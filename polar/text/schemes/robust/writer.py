"""The sender: at each place the token that wins a keyed race, which has exactly the model's law.

The token x that minimises s(x) / p(x), with s(x) independent and exponential with rate 1, has the law p: the times
s(x) / p(x) are exponential with rates p(x), and the first of them is that of x with probability p(x). No place of a
tape is used twice, so the tokens of a text, and of all texts under different nonces, have the model's law exactly,
whatever the payloads are: total variation 0 over the key. (Numbers are multiples of 2^-53: that is 2^-40 at most.)

Which p it is does not matter: the law after temperature, top-p and top-k, if that is what the service samples from.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from polar.text.keys.derivation import check_nonce
from polar.text.keys.key import Key
from polar.text.schemes.robust.randomness import Randomness, Words
from polar.text.schemes.robust.reading.likelihood import race_times
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.schemes.robust.tape import NONCES, SEGMENT, SLOTS, levels
from polar.text.schemes.robust.words import WordClock
from wm_env.common.arrays import Floats, Ints


class Writer:
    """Chooses the tokens of one text.

    Args:
        key: the shared secret.
        payload: K bits.
        nonce: number of the text under this key; a text of more than 512 words uses the following ones as well.
        settings: as the receiver's.
        strings: the string of each token id (`polar.text.schemes.robust.words.as_letters`).

    Raises:
        ValueError: the payload has another length.
    """

    def __init__(
        self,
        key: Key,
        payload: Sequence[int],
        nonce: int,
        settings: RobustSettings,
        strings: Mapping[int, str],
    ) -> None:
        if len(payload) != settings.payload_bits or set(payload) - {0, 1}:
            raise ValueError(f"the payload must be {settings.payload_bits} zeros and ones, as payload_bits says")
        check_nonce(nonce, NONCES)
        self._randomness = Randomness(key, settings.purpose)
        self._digests = self._randomness.digests(payload)
        self._levels = levels(settings.payload_bits)
        self._clock = WordClock(strings, settings.by_token)
        self._first = SEGMENT * nonce

    @property
    def words(self) -> int:
        """Words of the tape that were used so far."""
        return self._clock.word + 1

    def choose(self, law: Floats) -> int:
        """The next token of a text that is written from left to right.

        Args:
            law: probabilities of the tokens, shape (V,); they need not sum to 1.

        Raises:
            ValueError: no token has a probability.
        """
        token = self.race(law, self._clock.word, self._clock.slot)
        self._clock.advance(token)
        return token

    def follow(self, token: int) -> None:
        """Count a token that was not chosen here, such as a forced one."""
        self._clock.advance(token)

    def choose_at(self, law: Floats, place: int) -> int:
        """The token number `place` of a text, 0, 1, ..., in whatever order places are filled (clock "tokens").

        A place must be asked for once only: to ask again and keep the second answer would bend the law.
        """
        return self.race(law, place, 0)

    def race(self, law: Floats, word: int, slot: int) -> int:
        """The winner at a place of the text."""
        tokens = np.flatnonzero(law > 0)
        if not len(tokens):
            raise ValueError("no token has a probability: the law must have a positive entry")
        times = race_times(self._numbers(self._first + word, slot, tokens)) / law[tokens]
        return int(tokens[np.argmin(times)])

    def _numbers(self, word: int, slot: int, tokens: Ints) -> Words:
        level = int(self._levels[word % SEGMENT, slot % SLOTS])
        place = np.array(word), np.array(slot), tokens
        if not level:
            return self._randomness.pilots(*place)
        return self._randomness.words(*place, np.array(self._digests[level]))
