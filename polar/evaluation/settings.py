"""What to evaluate of a law. Free of torch, so that a command line shows its help at once."""

from dataclasses import dataclass
from typing import Literal

from wm_env.common.checks import check_choices
from wm_env.common.files import check_seed
from wm_env.common.help import paragraph_help
from wm_env.common.json_values import is_finite

MOST_KEYS = 1 << 16
"""Every key is gone through."""
MOST_TRANSMISSIONS = 10_000_000
"""All are in memory at once."""
MOST_TEXTS = 10**6
"""Texts of a kind; a machine writes a few in a minute."""


@paragraph_help
@dataclass(frozen=True)
class EvaluationSettings:
    """What to evaluate of a law, exactly or with the language model at hand.

    Raises:
        ValueError: a number is out of its range, or a list is empty; names the setting.
    """

    message_bits: tuple[int | Literal["auto"], ...] = ()
    """l, message bits per block; 1 to 5 if left out, or as many as the law was made for. "auto": also, for every state,
    the most bits that keep within auto_error and auto_tv; the default for a law that was planned with it. With the
    language model one of them, 3 if left out."""
    keys: tuple[int | Literal["paper"], ...] = (1, 2, 4, 8, 16, 32, 64)
    """K, numbers of keys per block, powers of two; "paper" is 2^ceil(I(U;X|S))."""
    decoder: tuple[str, ...] = ()
    """sc: successive, the paper's rule; ml: argmax P(X|V); map: the posterior of the message; all if left out."""
    knowledge: tuple[Literal["marginal", "path"], ...] = ("marginal", "path")
    """What the decoder knows of the state. marginal: nothing but its law Z (the paper); path: what follows from the
    blocks received before."""
    surplus: tuple[Literal["frozen", "dither"], ...] = ("frozen", "dither")
    """Use of key bits beyond the message: fix further positions of V (the paper), or shift the encoder's draw."""
    thresholds: tuple[float, float] | None = None
    """T_epsilon T_delta in bits: take M* by the paper's thresholds on the entropies instead of by length."""
    auto_error: float = 0.0
    """Most block error of a state with "auto", as seen by a decoder that knows the state; 0 is exact."""
    auto_tv: float = 0.0
    """Most total variation that "auto" may add in a state to what the law itself spends there."""
    auto_dither: int | None = None
    """Bits of a block's key beyond the pad that both ends know with "auto", 0 to 8; those that the law was planned with
    if left out."""
    channel: Literal["none", "erasure", "substitution"] = "none"
    """Edits on the way to the decoder, token by token, with noise: erasure = the edited tokens are seen to be edited;
    substitution = a block with an edited token arrives as another candidate. Also the error rates after them."""
    noise: float = 0.0
    """Probability that a token is edited, with a channel; below 1."""
    transmissions: int = 1000
    """Monte Carlo transmissions (texts) per operating point; 0 for none."""
    seed: int = 0
    """Seed of the Monte Carlo, and of the texts that the language model writes."""
    texts: int = 40
    """With the language model: texts of each kind."""
    model: str = "mini"
    """With the language model: the one of the run's tree; mini, a folder, or a hub id OWNER/NAME."""
    device: str = "cpu"
    """With the language model: where it runs, such as cpu or cuda:0."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("keys", "knowledge", "surplus"):
            if not getattr(self, name):
                raise ValueError(f"{name}: name at least one")
        if self.thresholds is not None and not all(map(is_finite, self.thresholds)):
            raise ValueError(f"thresholds={self.thresholds}: finite numbers are needed")
        if not 0 <= self.transmissions <= MOST_TRANSMISSIONS:
            raise ValueError(
                f"transmissions={self.transmissions}: 0 (for none) to {MOST_TRANSMISSIONS} texts are possible"
            )
        if not 2 <= self.texts <= MOST_TEXTS:
            raise ValueError(f"texts={self.texts}: 2 to {MOST_TEXTS} are possible")
        check_seed(self.seed)
        if not (is_finite(self.noise) and 0 <= self.noise < 1):
            raise ValueError(f"noise={self.noise}: a probability of 0 or more and below 1 is needed")
        if (self.channel == "none") != (self.noise == 0):
            raise ValueError(f"channel={self.channel}, noise={self.noise}: name both, or none of the two")
