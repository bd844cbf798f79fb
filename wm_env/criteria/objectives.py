"""What is maximised: the reward of a block law, in bits.

A new objective is a subclass of `Objective` and a line in `wm_env.criteria.table.OBJECTIVES`.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from wm_env.coded import balanced_law, coded_law, label_bits
from wm_env.common.checks import check_known
from wm_env.criteria.channel import BlockChannel, received_law
from wm_env.criteria.table import OBJECTIVES, load_class
from wm_env.information import Measures, StateCost, measure, measure_by_state
from wm_env.law import BlockLaw
from wm_env.optimum import RateBound
from wm_env.problem import MESSAGE_BITS, Problem


@dataclass(frozen=True)
class Objective:
    """The objective of the paper, r = I(U;X) - I(U;S), and the base of all others.

    Calling an objective turns a block law into the law that it looks at, whose cost is the cost and whose P~(x|s) leads
    to the next states.

    Attributes:
        name: as in `CovertWatermarkEnv(objective=...)`.
        closed_form: `agents.primal_dual.closed_form` has the gradient; otherwise there is that by automatic
            differentiation.
        comparable: `bound` is close enough for rates to be given as a share of it.
        block_length: L.
        message_set: positions of V that carry uniform message bits; empty if there are none.
    """

    name: ClassVar[str] = "gp"
    closed_form: ClassVar[bool] = True
    comparable: ClassVar[bool] = True

    block_length: int
    message_set: tuple[int, ...] = ()

    @classmethod
    def make(cls, block_length: int, labels: int, message_bits: int | None) -> "Objective":
        """The objective for blocks of L tokens and M labels.

        Raises:
            ValueError: `message_bits` are not what the objective takes.
        """
        if message_bits is not None:
            raise ValueError(
                f"message_bits={message_bits}: the {cls.name} objective has none; leave them out, or choose "
                f"objective={Coded.name!r}"
            )
        return cls(block_length)

    def __call__(self, law: BlockLaw) -> BlockLaw:
        """The law that this objective looks at: here `law` itself."""
        return law

    def sent(self, law: BlockLaw) -> BlockLaw:
        """The law with the labels as they are drawn when messages are sent: here `law` itself."""
        return law

    def measure(self, seen: BlockLaw, cost: StateCost) -> Measures:
        """Reward (as `rate`), cost and information of what calling the objective returned."""
        return measure(seen, cost)

    def measure_by_state(self, seen: BlockLaw, cost: StateCost) -> tuple[Tensor, Tensor]:
        """What each state contributes to reward and cost, two tensors (N, ...)."""
        return measure_by_state(seen, cost)

    def measure_behind(self, seen: BlockLaw, cost: StateCost, channel: BlockChannel | None) -> Measures:
        """`measure` with Y in the place of X in the reward and in `i_ux`, if there is a channel.

        The observer sees X, so the cost and the other measures are those of X.
        """
        measured = self.measure(seen, cost)
        if channel is None:
            return measured
        received = self.measure(received_law(seen, channel), cost)
        return dataclasses.replace(measured, rate=received.rate, i_ux=received.i_ux)

    def measure_by_state_behind(
        self, seen: BlockLaw, cost: StateCost, channel: BlockChannel | None
    ) -> tuple[Tensor, Tensor]:
        """`measure_by_state` with Y in the place of X in the reward, if there is a channel."""
        rate, of_state = self.measure_by_state(seen, cost)
        if channel is None:
            return rate, of_state
        return self.measure_by_state(received_law(seen, channel), cost)[0], of_state

    def bound(self, problem: Problem) -> RateBound:
        """What the sum of discounted rewards of no policy within the budget exceeds, in bits."""
        return problem.rate_bound


@dataclass(frozen=True)
class Coded(Objective):
    """r = I(V_M*;X), the information that uniform message bits at positions M* of the polar code deliver."""

    name = "coded"
    comparable = False

    @classmethod
    def make(cls, block_length: int, labels: int, message_bits: int | None) -> "Coded":
        """M* is the first `message_bits` (default `MESSAGE_BITS`) free positions of V.

        Successive decoding then meets the message before anything else.

        Raises:
            ValueError: more message bits than label bits, or none.
        """
        bits = label_bits(labels)
        count = MESSAGE_BITS if message_bits is None else message_bits
        if not 1 <= count <= bits:
            raise ValueError(f"message_bits={count}: {labels} labels carry 1 to {bits} message bits")
        free = block_length - bits
        return cls(block_length, tuple(range(free, free + count)))

    def __call__(self, law: BlockLaw) -> BlockLaw:
        """The law with the message in the place of the label."""
        return coded_law(law, self.block_length, self.message_set)

    def sent(self, law: BlockLaw) -> BlockLaw:
        """The law with uniform message bits."""
        return balanced_law(law, self.block_length, self.message_set)

    def bound(self, problem: Problem) -> RateBound:
        """The bound for 2^l labels that may depend on the state; it need not be reached.

        A coded law is a law with 2^l labels that are independent of the state.
        """
        return dataclasses.replace(problem.bound_for(1 << len(self.message_set)), exact=False)


def make_objective(name: str, block_length: int, labels: int, message_bits: int | None = None) -> Objective:
    """The objective of the table called `name`.

    Raises:
        ValueError: another name, labels that are no power of two, too many or one only, or message bits that the
            objective does not take.
    """
    bits = label_bits(labels)
    if bits == 0:
        raise ValueError("labels=1: a label needs at least two values to carry anything")
    if bits > block_length:
        raise ValueError(f"labels={labels}: blocks of {block_length} tokens have at most {2**block_length} words")
    check_known("objective", name, OBJECTIVES)
    kind: type[Objective] = load_class(OBJECTIVES[name])
    return kind.make(block_length, labels, message_bits)
