"""The tables of costs and objectives: a new one is a class, and a line here. Free of torch, as the settings are."""

from importlib import import_module
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A class of a table.

    Attributes:
        place: its module and its name, `module:Class`; imported only when it is asked for.
        about: what it is, in a few words for the help of a command line.
    """

    place: str
    about: str


COSTS = {
    "tv": Entry("wm_env.criteria.costs:TotalVariation", "total variation V(P~_XS, P_XS), the paper's, no unit"),
    "kl": Entry("wm_env.criteria.costs:KLDivergence", "KL divergence D(P~_XS || P_XS) in bits"),
}
"""The costs, by name."""

OBJECTIVES = {
    "gp": Entry("wm_env.criteria.objectives:Objective", "I(U;X) - I(U;S), the paper's"),
    "coded": Entry("wm_env.criteria.objectives:Coded", "I(V_M*;X) of uniform message bits"),
}
"""The objectives, by name."""


def load_class(entry: Entry) -> Any:
    """The class of an entry."""
    module, name = entry.place.split(":")
    return getattr(import_module(module), name)
