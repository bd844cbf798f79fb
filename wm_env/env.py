"""CovertWatermarkEnv-v0: covert multi-bit watermarking as a constrained Markov decision process."""

import dataclasses
import inspect
from itertools import accumulate
from os import PathLike
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray
from torch import Tensor

from wm_env.common.checks import integer, name_or_path, number, options_or_none, reals, seed_or_none
from wm_env.common.command import say
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.common.threads import one_thread_after_fork
from wm_env.criteria.channel import channels_of
from wm_env.criteria.costs import Cost, cost_of
from wm_env.criteria.objectives import Objective, make_objective
from wm_env.information import Measures
from wm_env.law import BlockLaw, JointLaw, advance, induced_cover
from wm_env.optimum import RateBound, check_budget
from wm_env.problem import Problem, open_tree, split_prompts
from wm_env.spaces import TOLERANCE, ProductOfSimplices
from wm_env.tree import StateTree, subset

Observation = dict[str, Any]

one_thread_after_fork()


class CovertWatermarkEnv(gym.Env[Observation, NDArray[Any]]):
    """Hide bits in the blocks of a text so that its law stays close to the language model's own.

    ## Description
    A masked-diffusion language model writes a text in B blocks of L tokens. Before block b its context is one of N_b
    states; Z(s) is the law of the state under everything decided so far, and P(x|s) is the model's own law over
    Q candidate blocks. The action chooses how a hidden label U is drawn in every state and how the block X is drawn
    given the label. The agent acts on the *law* of the state, never on one state: as in mean-field control, the
    transition is deterministic and exact, and an episode is one pass over the tree of contexts.

    ## Action space
    `ProductOfSimplices(N, M, Q)`: one float32 array of shape (N, M, 1 + Q) in [0, 1], N the states of the largest
    block. `[s, u, 0]` is P(u|s), a law over the M labels; `[s, u, 1:]` is W(.|u,s), a law over the candidates. Rows of
    states that the present block does not have are ignored. `step` also takes float64. A law whose sum is within 1e-4
    of 1 is renormalised in float64; mass on candidates that a state does not have is taken away first. NaN, negative
    entries, and laws without mass are refused: wrap a policy that emits logits in `wm_env.wrappers.LogitsToSimplices`.
    Put no rescaling or clipping wrapper between policy and environment.

    ## Observation space
    `Dict(state_probs: Box(N), cover: Box(N * Q), block: Discrete(B))`, float32, padded with zeros to the largest block:
    Z(s), P(x|s) row by row (flat, because Stable-Baselines3 wants vectors) and the number of the block. The observation
    after the last block has zeros for both laws.

    ## Reward
    r = I(U;X) - I(U;S) in bits per block (`objective="gp"`, the paper's), or I(V_M*;X), the information that uniform
    message bits at the positions M* of the polar code deliver (`objective="coded"`). Not discounted, not penalised.

    ## Cost
    `info["cost"]` is how far what is sent is from what the model would have written. `cost="tv"`, the paper's: the
    total variation V(P~_XS, P_XS), in [0, 1]. `cost="kl"`: the KL divergence D(P~_XS || P_XS) in bits. Of the coded law
    when the objective is coded; 0.0 at reset. The task is to maximise sum_b gamma^b r_b subject to
    sum_b gamma^b c_b <= epsilon, b = 1..B.

    ## Info
    The same keys at reset and at every step, `np.float64`. Of the block, 0 at reset: `cost`, `rate_per_token` (r / L),
    `i_ux`, `i_us`, `i_ux_given_s`, `cover_entropy`, bits per block. Of the episode: `cost_so_far`, the sum of
    gamma^b c_b; `rate_bound`, which sum_b gamma^b r_b of no policy within the budget exceeds; `optimal_rate`, the same
    number where M labels are known to reach it, as by default, else NaN. Every candidate of a state needs a label of
    its own, the same in all states that share it, so fewer than Q labels are too few. The coded objective's optimum is
    not known. Tables are attributes: `problem`, `laws`.

    ## Starting state
    Z(1) is the prior over prompts. Without options every episode has the same prompts, the first of the split.
    `reset(options={"prompts": n})` draws n prompts of the split without replacement, n at most `prompts`.

    ## Episode end
    `terminated` after block B: the horizon belongs to the problem and the block is in the observation.

    ## Arguments
    | name | default | meaning |
    | --- | --- | --- |
    | `tree` | `"news"` | the shipped tree, the path of a tree file, or a `StateTree` |
    | `prompts` | 4 | prompts of an episode |
    | `candidates` | 8 | Q, the most likely candidates kept per state |
    | `labels` | 8 | M, a power of two, 2 to 2^L |
    | `blocks` | `None` | B, the first blocks of the tree; all of them by default |
    | `epsilon` | 0.1 | bound on sum_b gamma^b c_b; the environment reports, it does not enforce |
    | `gamma` | 1.0 | discount of the objective |
    | `objective` | `"gp"` | `"gp"`, `"coded"`, or a `wm_env.criteria.objectives.Objective` |
    | `message_bits` | `None` | message bits per block, for the coded objective only: 3 by default |
    | `cost` | `"tv"` | `"tv"`, `"kl"`, or a `wm_env.criteria.costs.Cost` |
    | `channel` | `None` | edits on the way to the decoder, `"erasure"` or `"substitution"`: `wm_env.criteria.channel` |
    | `noise` | 0.0 | chance that a token is edited; the reward is then I(U;Y) - I(U;S), the cost stays that of X |
    | `split` | `"all"` | `"train"`, `"test"` (every fifth prompt) or `"all"` |
    | `problem` | `None` | a `wm_env.problem.Problem`, in the place of the tree, its sizes, epsilon and gamma |

    ## Rendering
    `render_mode="ansi"`: one line of text per finished block, and one with the sums, the budget and, for the gp
    objective, `rate_bound`. `"human"`: `step` prints them. `"rgb_array"`: a picture of the sums, 360 x 640 pixels.

    ## Version history
    * v0: first version.
    """

    metadata = {"render_modes": ["human", "ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012  (gymnasium's own form)
    action_space: ProductOfSimplices

    @usual_torch()
    def __init__(
        self,
        tree: str | PathLike[str] | StateTree = "news",
        prompts: int = 4,
        candidates: int = 8,
        labels: int = 8,
        blocks: int | None = None,
        epsilon: float = 0.1,
        gamma: float = 1.0,
        objective: str | Objective = Objective.name,
        message_bits: int | None = None,
        split: str = "all",
        render_mode: str | None = None,
        problem: Problem | None = None,
        cost: str | Cost = "tv",
        channel: str | None = None,
        noise: float = 0.0,
    ):
        if problem is not None:
            _refuse_beside(
                problem,
                tree=tree,
                prompts=prompts,
                candidates=candidates,
                labels=labels,
                blocks=blocks,
                epsilon=epsilon,
                gamma=gamma,
                split=split,
                cost=cost,
                channel=channel,
                noise=noise,
            )
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode={render_mode!r}: choose 'human', 'ansi', 'rgb_array' or None")
        self.render_mode = render_mode
        if problem is None:
            pool = open_pool(tree, integer("prompts", prompts), integer("candidates", candidates), blocks, split)
            cut = subset(pool, range(prompts))
            budget, discount = number("epsilon", epsilon), number("gamma", gamma)
            problem = Problem(cut, budget, discount, integer("labels", labels), cost_of(cost))
            problem = dataclasses.replace(problem, channel=channel, noise=number("noise", noise))
            channels_of(cut, channel, problem.noise)
            check_budget(problem.epsilon, problem.gamma)
        else:
            pool = problem.tree
        self._pool, self._first = pool, problem
        self.prompts, self.labels, self.candidates = len(problem.tree.prior), _labels(problem), pool.meta.candidates
        message_bits = None if message_bits is None else integer("message_bits", message_bits)
        if isinstance(objective, Objective):
            self.objective = objective
        else:
            self.objective = make_objective(objective, pool.block_length, self.labels, message_bits)
        self.problem = self._first
        self.laws: tuple[BlockLaw, ...] = ()
        self._measured: tuple[Measures, ...] = ()
        self._state_probs: Tensor | None = None
        self._cost_so_far = 0.0
        self._bound = RateBound(0.0, exact=False)

        states = _largest_block(self._pool, self.prompts)
        self._action_shape = (states, self.labels, 1 + self.candidates)
        self.action_space = ProductOfSimplices(states, self.labels, self.candidates)
        self.observation_space = Dict(
            state_probs=Box(0.0, 1.0, (states,), np.float32),
            cover=Box(0.0, 1.0, (states * self.candidates,), np.float32),
            block=Discrete(len(self._pool.blocks)),
        )

    @usual_torch()
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start at the prior over prompts; see the class for the options.

        Raises:
            ValueError: an unknown option, a number of prompts outside 1..`prompts`, or a seed that is no integer >= 0.
        """
        chosen, seed = options_or_none(options), seed_or_none(seed)
        self.check_options(chosen)
        super().reset(seed=seed)
        self.problem = self.draw_problem(chosen, self.np_random)
        self.laws, self._measured = (), ()
        self._state_probs = torch.from_numpy(self.problem.tree.prior)
        self._cost_so_far = 0.0
        self._bound = self.objective.bound(self.problem)
        return self._observation(), self._info()

    @usual_torch()
    def step(self, action: NDArray[Any]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take the laws of one block; see the class for what is accepted.

        Raises:
            ValueError: no real numbers, wrong shape, NaN, a negative entry or a law without mass; names state, label.
            gymnasium.error.ResetNeeded: before the first reset or after the last block.
        """
        if self._state_probs is None or len(self.laws) == len(self.problem.blocks):
            raise gym.error.ResetNeeded("this episode has ended or never begun: call reset() first")
        block = self.problem.blocks[len(self.laws)]
        p_label, p_candidate = repair_action(action, block.support, self._action_shape)
        law = BlockLaw(self._state_probs, block.cover, block.symbol, p_label, p_candidate)
        seen = self.objective(law)
        measured = self.objective.measure_behind(seen, self.problem.cost, self.problem.channels[len(self.laws)])
        self.laws, self._measured = (*self.laws, law), (*self._measured, measured)
        terminated = len(self.laws) == len(self.problem.blocks)
        if not terminated:
            states = len(self.problem.blocks[len(self.laws)].cover)
            self._state_probs = advance(self._state_probs, induced_cover(seen), block.child, states)
        self._cost_so_far += self.problem.gamma ** len(self.laws) * float(measured.cost)
        if self.render_mode == "human":
            say("\n".join(self._lines()[-2:]))
        return self._observation(), float(measured.rate), terminated, False, self._info()

    @usual_torch()
    def joint_law(self) -> JointLaw:
        """The joint law of the episode that has just ended; under the coded objective with uniform message bits.

        Raises:
            RuntimeError: the episode has not ended.
        """
        if len(self.laws) < len(self.problem.blocks):
            raise RuntimeError(
                f"only {len(self.laws)} of {len(self.problem.blocks)} blocks are done: finish the episode"
            )
        chosen, tree = self.objective.message_set, self.problem.tree
        laws = tuple(self.objective.sent(law) for law in self.laws)
        return JointLaw(laws, tree.block_length, tree.fingerprint, (chosen,) * len(laws) if chosen else None)

    def identity(self) -> dict[str, Any]:
        """What a policy that was trained here depends on, JSON types; the tree is the fingerprint of all prompts that
        episodes may draw.
        """
        return {
            "tree": self._pool.fingerprint,
            "states": self.action_space.states,
            "labels": self.labels,
            "candidates": self.candidates,
            "blocks": len(self._pool.blocks),
            "block_length": self._pool.block_length,
            "objective": self.objective.name,
            "message_bits": len(self.objective.message_set) or None,
            "cost": self._first.cost.name,
            "epsilon": self._first.epsilon,
            "gamma": self._first.gamma,
        } | ({} if self._first.channel is None else {"channel": self._first.channel, "noise": self._first.noise})

    def render(self) -> str | NDArray[np.uint8] | None:
        """One line per finished block and one of sums, or a picture of the sums; None in the other modes."""
        if self.render_mode == "ansi":
            return "\n".join(self._lines())
        if self.render_mode == "rgb_array":
            # Imported only here: stepping the environment does without Matplotlib.
            from wm_env.rendering import draw_frame

            (_, gained), (_, spent) = self._sums("rate"), self._sums("cost")
            return draw_frame(gained, spent, self.problem, self._bound)
        return None

    def _info(self) -> dict[str, Any]:
        return info_values(
            self._measured[-1] if self._measured else None,
            self._cost_so_far,
            self._bound.rate,
            self._bound.rate if self._bound.exact else np.nan,
            self.problem.tree.block_length,
        )

    def _sums(self, name: str) -> tuple[list[float], list[float]]:
        """A measure of the finished blocks, and its discounted sums up to each of them."""
        values = [float(getattr(one, name)) for one in self._measured]
        gamma = self.problem.gamma
        return values, list(accumulate(gamma**block * value for block, value in enumerate(values, start=1)))

    def _lines(self) -> list[str]:
        """One line per finished block and one of sums."""
        (rates, gained), (costs, _) = self._sums("rate"), self._sums("cost")
        cost_told = self.problem.cost.told
        lines = [
            f"block {number}: rate {rate:.4f} bits, {cost_told(cost)}"
            for number, (rate, cost) in enumerate(zip(rates, costs, strict=True), start=1)
        ]
        rate = f"rate {gained[-1] if gained else 0.0:.4f} of at most {self._bound.rate:.4f} bits"
        spent = f"{cost_told(self._cost_so_far)} of at most {self.problem.epsilon:.4f}"
        return [*lines, f"so far: {rate}, {spent}"]

    def check_options(self, options: dict[str, Any]) -> None:
        """Check reset options before anything changes.

        Raises:
            ValueError: an unknown option, or a number of prompts outside 1..`prompts`.
        """
        unknown = set(options) - {"prompts"}
        if unknown:
            raise ValueError(f"unknown reset options {sorted(unknown)}: only 'prompts' is known")
        count = options.get("prompts", 1)
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= count <= self.prompts:
            raise ValueError(f"options['prompts']={count!r}: an integer from 1 to {self.prompts} is needed")

    def draw_problem(self, options: dict[str, Any], rng: np.random.Generator) -> Problem:
        """The problem of an episode with reset options that `check_options` accepts; prompts are drawn with `rng`."""
        if "prompts" not in options:
            return self._first
        rows = rng.choice(len(self._pool.prior), size=int(options["prompts"]), replace=False)
        return dataclasses.replace(self._first, tree=subset(self._pool, rows.tolist()))

    def _observation(self) -> Observation:
        number = len(self.laws)
        blocks = self.problem.blocks
        state_probs = np.zeros(self._action_shape[0], dtype=np.float32)
        cover = np.zeros((len(state_probs), self.candidates), dtype=np.float32)
        if number < len(blocks) and self._state_probs is not None:
            rows = len(blocks[number].cover)
            state_probs[:rows] = self._state_probs.numpy()
            cover[:rows] = blocks[number].cover.numpy()
        return {"state_probs": state_probs, "cover": cover.reshape(-1), "block": np.int64(min(number, len(blocks) - 1))}


def info_values(
    measured: Measures | None, cost_so_far: Any, rate_bound: Any, optimal_rate: Any, block_length: int
) -> dict[str, Any]:
    """The info of the environment, of one copy or with arrays for all copies; zeros for what no block has yet.

    Args:
        measured: the last block, None after a reset.
        cost_so_far: sum_b gamma^b c_b.
        rate_bound, optimal_rate: of the episode, the second NaN where it is not known.
        block_length: L.
    """
    names = ("cost", "i_ux", "i_us", "i_ux_given_s", "cover_entropy")
    nothing = np.zeros_like(cost_so_far, dtype=np.float64)
    values = {name: nothing if measured is None else getattr(measured, name).numpy() for name in names}
    values["rate_per_token"] = nothing if measured is None else measured.rate.numpy() / block_length
    values |= {"cost_so_far": cost_so_far, "rate_bound": rate_bound, "optimal_rate": optimal_rate}
    return {name: np.asarray(value, dtype=np.float64)[()] for name, value in values.items()}


def open_pool(
    tree: str | PathLike[str] | StateTree, prompts: int, candidates: int, blocks: int | None, split: str
) -> StateTree:
    """The tree of all prompts of a split, cut to the candidates and blocks.

    Raises:
        FileNotFoundError: no such tree file.
        ValueError: an argument that does not fit the tree.
    """
    whole = tree if isinstance(tree, StateTree) else open_tree(name_or_path("tree", tree))
    rows = split_prompts(whole, split)
    if not 1 <= prompts <= len(rows):
        raise ValueError(f"prompts={prompts}: split {split!r} of this tree has 1 to {len(rows)}")
    return subset(whole, rows, candidates, None if blocks is None else integer("blocks", blocks))


def _refuse_beside(problem: Any, **arguments: Any) -> None:
    """Check that nothing is given that a problem has already."""
    if not isinstance(problem, Problem):
        raise ValueError(f"problem={type(problem).__name__}: a wm_env.problem.Problem is needed")
    usual = inspect.signature(CovertWatermarkEnv).parameters
    for name, value in arguments.items():
        if value != usual[name].default:
            raise ValueError(f"{name}={value!r}: the problem has its own; leave it out")


def _labels(problem: Problem) -> int:
    if problem.labels is None:
        raise ValueError("labels=None: an environment needs a number of labels; give the problem one")
    return problem.labels


def repair_action(action: NDArray[Any], support: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Turn an action into exact float64 laws on the support of the cover.

    Args:
        action: shape (N, M, 1 + Q), real numbers.
        support: which candidates a state has, shape (n, Q) with n <= N; only the first n states are read.
        shape: the action shape (N, M, 1 + Q) that is wanted.

    Returns:
        P(u|s) of shape (n, M) and W(x|u,s) of shape (n, M, Q), float64, rows sum to 1.

    Raises:
        ValueError: a law is refused; the message names its state (and label), the first of several.
    """
    array = reals("action", action)
    if array.shape != shape:
        raise ValueError(f"action of shape {array.shape}: this environment wants {shape}")
    return repair_laws(torch.from_numpy(array[: len(support)]).to(torch.float64, copy=True), support)


def repair_laws(laws: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """Check laws and normalise them in their place.

    Args:
        laws: shape (N, M, 1 + Q, ...), float64, in the order of an action.
        support: which candidates a state has, shape (N, Q, ...).

    Returns:
        P(u|s) of shape (N, M, ...) and W(x|u,s) of shape (N, M, Q, ...), views of `laws`.

    Raises:
        ValueError: a law is refused; the message names its state (and label), the first of several.
    """
    p_label, p_candidate = laws[:, :, 0], laws[:, :, 1:]
    label_sum, candidate_sum = p_label.sum(1), p_candidate.sum(2)
    # A NaN fails every comparison.
    if not (laws.amin() >= 0 and _fits(label_sum).all() and _fits(candidate_sum).all()):
        _refuse("P(u|s)", label_sum, (p_label < 0).any(1))
        _refuse("W(x|u,s)", candidate_sum, (p_candidate < 0).any(2))
    if not support.all():
        p_candidate *= support[:, None]
        candidate_sum = p_candidate.sum(2)
        empty = candidate_sum <= 0
        if empty.any():
            raise ValueError(f"W(x|u,s) of {_where(empty)} has no mass on the candidates of that state")
    p_label /= label_sum[:, None]
    p_candidate /= candidate_sum[:, :, None]
    return p_label, p_candidate


def _fits(total: Tensor) -> Tensor:
    return (total - 1).abs() <= TOLERANCE


def _refuse(name: str, total: Tensor, negative: Tensor) -> None:
    wrong = ~_fits(total) | negative
    if wrong.any():
        raise ValueError(
            f"{name} of {_where(wrong)} is not a law: entries must be >= 0 and sum to 1 within {TOLERANCE:g}, "
            f"the sum is {float(total[wrong][0]):.6g}; "
            "wrap the environment in wm_env.wrappers.LogitsToSimplices to act with logits"
        )


def _where(wrong: Tensor) -> str:
    return ", ".join(
        f"{name} {value}" for name, value in zip(("state", "label"), wrong.nonzero()[0].tolist(), strict=False)
    )


def _largest_block(pool: StateTree, prompts: int) -> int:
    """Most states that a block can have with this many prompts: the sum over the prompts with the most."""
    most = 0
    owner = np.arange(len(pool.prior))
    for block in pool.blocks:
        per_prompt = np.bincount(owner, minlength=len(pool.prior))
        most = max(most, int(np.sort(per_prompt)[-prompts:].sum()))
        leads_on = block.child >= 0
        following = np.empty(int(leads_on.sum()), dtype=np.int64)
        following[block.child[leads_on]] = np.broadcast_to(owner[:, None], block.child.shape)[leads_on]
        owner = following
    return most
