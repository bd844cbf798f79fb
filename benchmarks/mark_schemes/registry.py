"""The marks by name."""

from mark_schemes.cyclic import CyclicShift
from mark_schemes.door import Mark
from mark_schemes.edit_distance import EditDistance
from mark_schemes.mpac import Mpac
from mark_schemes.ours import Plain, Robust
from mark_schemes.permuted_half import PermutedHalf
from mark_schemes.pseudorandom_code import PseudorandomCode
from mark_schemes.tournament import Tournament
from wm_env.lm.tokenizer import TextTokenizer

_CLASSES = (Robust, Mpac, CyclicShift, PermutedHalf, Tournament, EditDistance, PseudorandomCode, Plain)

NAMES = tuple(each.name for each in _CLASSES)


def make_marks(tokenizer: TextTokenizer) -> dict[str, Mark]:
    """Every mark, for a model with this tokenizer."""
    return {each.name: each(tokenizer) for each in _CLASSES}
