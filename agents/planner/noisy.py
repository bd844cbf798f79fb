"""The planner behind a channel: labels and marginals that climb I(U;Y) - I(U;S) within a budget, over all blocks.

With a posterior r_b(u|y) of its own for every block the rate is the maximum over r of E[log2 r(U|Y) - log2 P(U|S)]. For
a fixed r every state contributes by itself, and a minorant of that (H(U|S) is at least its tangent less a divergence,
by data processing) is maximised in closed form, backwards over the blocks with a multiplier beta for the budget:

    l(u,x) = sum_y K(y|x,s) log2 r(u|y),    a(x) = sum_u P(u,x|s) 2^(l(u,x)) / P(u|s),
    q = argmax H(q) + sum_x q(x) (log2 a(x) + value to go) - beta V(q, p),    P(u|x,s) ~ P(u,x|s) 2^(l(u,x)) / P(u|s).

So the rate less beta times the cost never falls. Near the top these updates are slow, so they are extrapolated with
momentum (Nesterov; restarted as O'Donoghue and Candes, "Adaptive restart for accelerated gradient schemes", 2015): the
logarithms of q and of P(u|x,s) go on in the direction of the last two updates, and where that lowers the objective the
plain update is taken. The objective is not concave: the plan is a law, and `wm_env.criteria.noise` bounds all laws. The
climb starts at a proper colouring, where U tells X, with a little of every other label.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from agents.planner.rate import Plan
from wm_env.coded import label_bits
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.criteria.channel import BlockChannel, received_law
from wm_env.criteria.costs import TOTAL_VARIATION
from wm_env.information import LN2, entropy, measure, total_variation
from wm_env.labels.colouring import colour_candidates
from wm_env.law import BlockLaw, JointLaw, induced_cover, probs_given_state, roll_out, sum_by_symbol, values_ahead
from wm_env.optimum import COST_RESOLUTION, check_budget
from wm_env.tree import StateTree

_STEPS = 12
"""Halvings of the multiplier's interval."""
_SPREAD = 1e-3
"""Share of all labels in the labels of a candidate at the start."""
_SPREAD_OF_MANY = 0.1
"""The same if there are more labels than colours."""
_TINY = 1e-300


@usual_torch()
def plan_noisy(
    tree: StateTree,
    channels: Sequence[BlockChannel],
    epsilon: float,
    gamma: float = 1.0,
    labels: int | None = None,
    iterations: int = 40,
    generator: torch.Generator | None = None,
) -> Plan:
    """A law with a high rate sum_b gamma^b [I(U;Y) - I(U;S)] and with cost at most `epsilon`, that of X.

    The decoder sees Y, the block behind the channel. The programme is not concave, so the law need not be optimal:
    compare its rate with `wm_env.criteria.noise.noisy_rate_bound`. The plan's multiplier is that of the last climb.

    Args:
        tree, channels, epsilon, gamma: as in `noisy_rate_bound`.
        labels: M, a power of two; by default the smallest that suffices for a proper colouring.
        iterations: updates at each multiplier.
        generator: if given, the first law is drawn with it; otherwise the first law is a proper colouring.

    Raises:
        ValueError: a negative budget, a discount outside (0, 1], or labels that are no power of two.
    """
    check_budget(epsilon, gamma)
    policies = _start(tree, labels, generator)
    climb = _Climb(tree, tuple(channels), gamma)
    if epsilon <= COST_RESOLUTION:
        return climb.plan(climb.run(policies, torch.inf, iterations), torch.inf)
    free = climb.run(policies, 0.0, iterations)
    plan = climb.plan(free, 0.0)
    if plan.cost <= epsilon:
        return plan
    low, high = 0.0, 64.0
    best = climb.plan(climb.run(policies, torch.inf, iterations), torch.inf)
    for _ in range(_STEPS):
        multiplier = (low + high) / 2
        policies = climb.run(policies, multiplier, iterations)
        plan = climb.plan(policies, multiplier)
        if plan.cost <= epsilon:
            high = multiplier
            best = plan if plan.rate > best.rate else best
        else:
            low = multiplier
    return best


class _Climb:
    """A tree behind channels, with the update of all its laws."""

    def __init__(self, tree: StateTree, channels: tuple[BlockChannel, ...], gamma: float) -> None:
        self.tree = tree
        self.channels = channels
        self.gamma = gamma
        self.covers = tuple(torch.from_numpy(block.cover) for block in tree.blocks)
        self.children = tuple(torch.from_numpy(block.child) for block in tree.blocks)

    def run(self, joint: tuple[Tensor, ...], multiplier: float, iterations: int) -> tuple[Tensor, ...]:
        """The laws P(u,x|s) of all blocks, each of shape (N, M, Q), after `iterations` calls of `update`.

        Their objective is never below that of `joint`.
        """
        best, updated = self.update(joint, multiplier)
        last, streak = joint, 0
        for _ in range(iterations - 1):
            trial = _extrapolate(updated, last, streak / (streak + 3)) if streak else updated
            reached, following = self.update(trial, multiplier)
            if streak and reached < best:
                streak = 0
                continue
            last, updated, best, streak = updated, following, reached, streak + 1
        return updated

    def update(self, joint: tuple[Tensor, ...], multiplier: float) -> tuple[float, tuple[Tensor, ...]]:
        """The objective sum_b gamma^b (r_b - multiplier c_b) of the laws, and the laws after one update.

        The update goes backwards over the blocks; with an infinite multiplier the marginals are the cover.
        """
        law = self.law(joint)
        updated: list[Tensor] = []
        value: Tensor | None = None
        objective = 0.0
        for number in reversed(range(len(joint))):
            cover = self.covers[number]
            given_state = probs_given_state(law.blocks[number])
            exponent = self._evidence(law.blocks[number], self.channels[number])
            objective += self.gamma ** (number + 1) * _worth(law.blocks[number], given_state, exponent, multiplier)
            top = exponent.amax(1, keepdim=True)
            weight = given_state * torch.exp2(exponent - top) / law.blocks[number].p_label.clamp_min(_TINY)[:, :, None]
            total = weight.sum(1)
            worth = torch.where(cover > 0, total.clamp_min(_TINY).log() / LN2 + top[:, 0], 0)
            bonus = worth + self.gamma * values_ahead(value, self.children[number])
            marginal = cover if multiplier == torch.inf else TOTAL_VARIATION.best_response(cover, bonus, multiplier)
            value = entropy(marginal) + (marginal * bonus).sum(1)
            if multiplier < torch.inf:
                value = value - multiplier * total_variation(marginal, cover)
            share = weight / total.clamp_min(_TINY)[:, None]
            updated.append(marginal[:, None] * share)
        return objective, tuple(reversed(updated))

    def law(self, joint: tuple[Tensor, ...]) -> JointLaw:
        """The law of the conditionals P(u,x|s) of every block."""

        def policy(number: int, _: Tensor) -> tuple[Tensor, Tensor]:
            p_label = joint[number].sum(2)
            given_label = joint[number] / p_label.clamp_min(_TINY)[:, :, None]
            # A label that a state never uses gets the cover as its W.
            used = (p_label > _TINY)[:, :, None]
            rounded = given_label / given_label.sum(2, keepdim=True).clamp_min(_TINY)
            return p_label / p_label.sum(1, keepdim=True), torch.where(used, rounded, self.covers[number][:, None])

        return roll_out(self.tree, policy)

    def plan(self, joint: tuple[Tensor, ...], multiplier: float) -> Plan:
        """What the law is worth."""
        law = self.law(joint)
        rate, cost = 0.0, 0.0
        for number, (block, channel) in enumerate(zip(law.blocks, self.channels, strict=True), 1):
            rate += self.gamma**number * float(measure(received_law(block, channel)).rate)
            of_state = total_variation(induced_cover(block), block.cover)
            cost += self.gamma**number * float(block.state_probs @ of_state)
        return Plan(law, multiplier, rate, cost)

    def _evidence(self, law: BlockLaw, channel: BlockChannel) -> Tensor:
        """l(u,x) = sum_y K(y|x,s) log2 r(u|y), shape (N, M, Q)."""
        received = received_law(law, channel)
        joint = sum_by_symbol(
            (received.state_probs[:, None] * received.p_label)[:, :, None] * received.p_candidate, received.symbol
        )
        log_posterior = (joint.clamp_min(_TINY) / joint.sum(1, keepdim=True).clamp_min(_TINY)).clamp_min(_TINY).log()
        of_state = log_posterior[channel.output.clamp_min(0)] / LN2
        return (channel.kernel @ of_state).mT


def _worth(law: BlockLaw, given_state: Tensor, evidence: Tensor, multiplier: float) -> float:
    """I(U;Y) - I(U;S) less multiplier times the cost, from l(u,x) of the law's own posterior and P(u,x|s)."""
    surprise = evidence - law.p_label.clamp_min(_TINY).log()[:, :, None] / LN2
    of_state = (given_state * surprise).sum((1, 2))
    if multiplier < torch.inf:
        of_state = of_state - multiplier * total_variation(given_state.sum(1), law.cover)
    return float(law.state_probs @ of_state)


def _extrapolate(now: tuple[Tensor, ...], before: tuple[Tensor, ...], momentum: float) -> tuple[Tensor, ...]:
    """Laws P(u,x|s) of all blocks: log q(x|s) and log P(u|x,s) go on from `before` to `now`, that share of the way."""
    return tuple(
        _go_on(new.sum(1), old.sum(1), momentum)[:, None] * _go_on(new, old, momentum)
        for new, old in zip(now, before, strict=True)
    )


def _go_on(new: Tensor, old: Tensor, momentum: float) -> Tensor:
    """new (new / old)^momentum, normalised along the second axis; 0 where `new` is."""
    log_new, log_old = new.clamp_min(_TINY).log(), old.clamp_min(_TINY).log()
    exponent = torch.where(new > 0, log_new + momentum * (log_new - log_old), -torch.inf)
    return exponent.softmax(1).nan_to_num(nan=0)


def _start(tree: StateTree, labels: int | None, generator: torch.Generator | None) -> tuple[Tensor, ...]:
    """P(u,x|s) of every block at the start: by the candidate's colour, or random.

    Labels beyond the colours: every colour has as many, over which a candidate spreads at random in every state.
    """
    colours = [torch.from_numpy(colour_candidates(block)) for block in tree.blocks]
    needed = 1 << (max(int(colour.max()) for colour in colours)).bit_length()
    count = needed if labels is None else labels
    label_bits(count)
    copies = max(count // needed, 1)
    fixed = torch.Generator().manual_seed(0)
    joints = []
    for block, colour in zip(tree.blocks, colours, strict=True):
        cover = torch.from_numpy(block.cover)
        if generator is not None:
            noise = torch.randn(*colour.shape, count, dtype=torch.float64, generator=generator)
            share = (2 * noise).softmax(-1)
        else:
            share = torch.nn.functional.one_hot(colour.clamp_min(0) % (count // copies), count // copies).double()
            if copies > 1:
                noise = torch.randn(*colour.shape, 1, copies, dtype=torch.float64, generator=fixed)
                share = (share[..., None] * (2 * noise).softmax(-1)).flatten(-2)
            spread = _SPREAD if copies == 1 else _SPREAD_OF_MANY
            share = (1 - spread) * share + spread / count
        joints.append((cover[..., None] * share).mT.contiguous())
    return tuple(joints)
