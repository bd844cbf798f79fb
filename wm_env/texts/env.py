"""CovertWatermarkText-v0: one text an episode, one context a step."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from wm_env.common.arrays import Floats, Ints
from wm_env.common.checks import integer, name_or_path, number, options_or_none, reals, seed_or_none
from wm_env.criteria.objectives import make_objective
from wm_env.env import Observation, repair_laws
from wm_env.information import measure
from wm_env.law import BlockLaw, SharedSymbols
from wm_env.optimum import RateBound, check_budget
from wm_env.problem import open_tree
from wm_env.spaces import ProductOfSimplices
from wm_env.texts.contexts import ChainContexts, Contexts, TreeContexts, random_chain
from wm_env.tree import subset
from wm_env.vector import seeds_of

Infos = dict[str, Any]


@dataclass(frozen=True)
class TextTask:
    """What an episode is about; see `CovertWatermarkText` for the arguments."""

    contexts: Contexts
    labels: int
    blocks: int
    epsilon: float
    gamma: float

    @cached_property
    def bound(self) -> RateBound:
        """What the expected sum of discounted rewards of no policy within the budget exceeds."""
        return self.contexts.bound(self.blocks, self.labels, self.epsilon, self.gamma)

    def identity(self) -> dict[str, Any]:
        """As `CovertWatermarkEnv.identity`; there is one state at a time."""
        return {
            "tree": self.contexts.fingerprint,
            "states": 1,
            "labels": self.labels,
            "candidates": self.contexts.candidates,
            "blocks": self.blocks,
            "block_length": self.contexts.block_length,
            "objective": "gp",
            "message_bits": None,
            "epsilon": self.epsilon,
            "gamma": self.gamma,
        }


@dataclass(frozen=True)
class TextStep:
    """One context of each of several texts, played.

    Attributes:
        rate: I(U;X|S=s) in bits, shape (n,).
        cost: V(P~(.|s), P(.|s)), shape (n,).
        induced: P~(x|s), shape (n, Q), rows sum to 1.
    """

    rate: Floats
    cost: Floats
    induced: Floats


def play(cover: Floats, actions: NDArray[Any]) -> TextStep:
    """Measure the laws that are played in some contexts.

    Args:
        cover: P(x|s), shape (n, Q).
        actions: shape (n, M, 1 + Q), as in `wm_env.spaces.ProductOfSimplices`.

    Raises:
        ValueError: a law is refused.
    """
    law = torch.from_numpy(reals("action", actions)).to(torch.float64, copy=True)
    p_label, p_candidate = repair_laws(law, torch.from_numpy(cover > 0))
    return measure_states(torch.from_numpy(cover), p_label, p_candidate)


def measure_states(cover: Tensor, p_label: Tensor, p_candidate: Tensor) -> TextStep:
    """`play` for P(u|s), shape (n, M), and W(x|u,s), shape (n, M, Q), that are laws."""
    candidates = cover.shape[1]
    # One state each: nothing is shared, and a copy is a column.
    nothing = torch.zeros(0, dtype=torch.int64)
    law = BlockLaw(
        torch.ones(1, len(cover), dtype=torch.float64),
        cover.T[None],
        torch.arange(candidates)[None, :, None],
        p_label.T[None],
        p_candidate.movedim(0, -1)[None],
        SharedSymbols(candidates, nothing, nothing[:, None], 0),
    )
    measured = measure(law)
    induced = (p_label[..., None] * p_candidate).sum(1)
    return TextStep(measured.rate.numpy(), measured.cost.numpy(), induced.numpy())


class CovertWatermarkText(gym.Env[Observation, NDArray[Any]]):
    """Write one text, block by block, and hide bits in every block.

    ## Description
    `CovertWatermarkEnv-v0` acts on the law of the state, so it has to know every state that a text can reach, and their
    number grows exponentially with the blocks. Here an episode is a single text of B = 8 to 64 blocks: the environment
    shows the cover P(x|s) of the context s that the text has reached, the action is the law of label and block in this
    context, and the next context follows from a block that is drawn from the P~(x|s) that the action induces.

    ## Action space
    `ProductOfSimplices(1, M, Q)`: a float32 array of shape (1, M, 1 + Q), as in `CovertWatermarkEnv-v0` for one state.

    ## Observation space
    `Dict(state_probs: Box(1), cover: Box(Q), block: Discrete(B))`, as in `CovertWatermarkEnv-v0` for one state, whose
    probability is 1; zero after the last block. A policy that treats states alike acts in both environments.

    ## Reward and cost
    r = I(U;X|S=s) in bits; `info["cost"]` = V(P~(.|s), P(.|s)), in [0, 1]. The task is to maximise
    E sum_b gamma^b r_b subject to E sum_b gamma^b c_b <= epsilon; the expectation is over texts.

    For a policy that looks at nothing but s and b, the mean of the cost over texts is the cost of
    `CovertWatermarkEnv-v0`. The mean of the reward is I(U;X|S), which exceeds its reward I(U;X) - I(U;S) by
    I(U;S|X) >= 0. So the two are equal if and only if U and S are independent given X: if the candidate sets of the
    states that a text can be in at a block are disjoint, or if the states that share a candidate give it one P(u|x,s),
    as labels that are a function of X do.

    ## Info
    The same keys at reset and at every step: `cost`, `rate_per_token` (r / L), `candidate` (the one that was drawn, -1
    at reset), `cost_so_far`, `rate_bound`, which the mean return of no policy within the budget exceeds, and
    `optimal_rate`, the same number where it is reached, else NaN.

    ## Starting state
    A prompt drawn from the prior. No options.

    ## Episode end
    `terminated` after block B.

    ## Arguments
    | name | default | meaning |
    | --- | --- | --- |
    | `source` | `"chain"` | synthetic and stationary; `"live"`: the embedded model; `"news"` or a path: a tree |
    | `blocks` | 8 | B; at most the blocks of a tree |
    | `candidates` | 8 | Q |
    | `labels` | 8 | M, a power of two |
    | `epsilon` | 0.4 | bound on E sum_b gamma^b c_b; the environment reports, it does not enforce |
    | `gamma` | 1.0 | discount of the objective |
    | `prompts` | 50 | kinds of contexts of a chain, prompts of a tree or of the model |
    | `temperature` | 1.0 | of the model |
    | `source_seed` | 0 | of a chain and of the choice of the model's prompts |
    | `task` | `None` | a `TextTask`, in the place of all others |

    ## Vectorised
    `gymnasium.make_vec(id, num_envs=n, vectorization_mode="vector_entry_point")`: the same numbers.

    ## Version history
    * v0: first version.
    """

    metadata = {"render_modes": [], "render_fps": 1}  # noqa: RUF012  (gymnasium's own form)
    action_space: ProductOfSimplices

    def __init__(self, render_mode: str | None = None, task: TextTask | None = None, **arguments: Any):
        if render_mode is not None:
            raise ValueError(f"render_mode={render_mode!r}: this environment does not render")
        if task is not None and arguments:
            raise ValueError(f"{sorted(arguments)[0]}: leave it out beside a task, which has its own")
        self.render_mode = None
        self.task = make_task(**arguments) if task is None else task
        self.action_space, self.observation_space = spaces_of(self.task)
        self._context: Hashable = None
        self._cover: Floats = np.zeros((1, self.task.contexts.candidates))
        self._number = -1
        self._cost_so_far = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw a prompt.

        Raises:
            ValueError: options, of which there are none, or a seed that is no integer >= 0.
        """
        check_no_options(options)
        super().reset(seed=seed_or_none(seed))
        self._context, self._number, self._cost_so_far = self.task.contexts.start(self.np_random.random()), 0, 0.0
        self._cover = self.task.contexts.covers([self._context])
        return self._observation(), self._info(0.0, 0.0, -1)

    def step(self, action: NDArray[Any]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play the law, draw the block.

        Raises:
            ValueError: no real numbers, wrong shape, NaN, a negative entry or a law without mass.
            gymnasium.error.ResetNeeded: before the first reset or after the last block.
        """
        task = self.task
        if not 0 <= self._number < task.blocks:
            raise gym.error.ResetNeeded("this episode has ended or never begun: call reset() first")
        if np.shape(action) != self.action_space.shape:
            raise ValueError(f"action of shape {np.shape(action)}: this environment wants {self.action_space.shape}")
        played = play(self._cover, np.asarray(action))
        rate, cost = float(played.rate[0]), float(played.cost[0])
        candidate = int(draw_candidates(played.induced, np.array([self.np_random.random()]))[0])
        self._number += 1
        self._cost_so_far += task.gamma**self._number * cost
        if self._number < task.blocks:
            self._context = task.contexts.follow(self._context, candidate)
            self._cover = task.contexts.covers([self._context])
        info = self._info(rate, cost, candidate)
        return self._observation(), rate, self._number == task.blocks, False, info

    def identity(self) -> dict[str, Any]:
        """What a policy that was trained here depends on; see `TextTask.identity`."""
        return self.task.identity()

    def _info(self, rate: float, cost: float, candidate: int) -> dict[str, Any]:
        columns = info_columns(self.task, np.array([rate]), np.array([cost]), np.array([self._cost_so_far]))
        return {name: values[0] for name, values in columns.items()} | {"candidate": np.int64(candidate)}

    def _observation(self) -> Observation:
        ended = np.array([self._number == self.task.blocks])
        seen = text_observation(self._cover, np.array([self._number]), ended)
        return {"state_probs": seen["state_probs"][0], "cover": seen["cover"][0], "block": seen["block"][0]}


class CovertWatermarkTextVectorEnv(VectorEnv[Observation, NDArray[Any], NDArray[Any]]):
    """`num_envs` texts side by side, all at one block; autoreset is "SameStep".

    The numbers are those of `gymnasium.vector.SyncVectorEnv` around single environments with the same seeds. Contexts
    of the language model that are not remembered are computed together.
    """

    def __init__(self, num_envs: int = 1, autoreset_mode: str | AutoresetMode = "SameStep", **arguments: Any):
        num_envs = integer("num_envs", num_envs)
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: at least one copy is needed")
        if AutoresetMode(autoreset_mode) is not AutoresetMode.SAME_STEP:
            raise ValueError("texts side by side have autoreset_mode='SameStep' only")
        self.single = CovertWatermarkText(**arguments)
        self.task = self.single.task
        self.num_envs = num_envs
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_action_space = self.single.action_space
        self.single_observation_space = self.single.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._rngs: list[np.random.Generator] = []
        self._number = -1
        self._contexts: list[Hashable] = []
        self._cover: Floats = np.zeros((num_envs, self.task.contexts.candidates))
        self._cost_so_far: Floats = np.zeros(num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Infos]:
        """Draw a prompt for every copy; copy i gets seed + i, or the i-th of a sequence.

        Raises:
            ValueError: options, or seeds that are no integers >= 0 or not one for each copy.
        """
        check_no_options(options)
        seeds = seeds_of(seed, self.num_envs)
        if not self._rngs:
            self._rngs = [seeding.np_random(one)[0] for one in seeds]
        else:
            pairs = zip(self._rngs, seeds, strict=True)
            self._rngs = [rng if one is None else seeding.np_random(one)[0] for rng, one in pairs]
        nothing = np.zeros(self.num_envs)
        return self._begin(), self._infos(nothing, nothing, np.full(self.num_envs, -1))

    def step(self, actions: NDArray[Any]) -> tuple[Observation, Floats, NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Play one block of every text.

        Raises:
            ValueError: no real numbers, wrong shape, NaN, a negative entry or a law without mass; names copy as state.
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self._number < 0:
            raise gym.error.ResetNeeded("no episode has begun: call reset() first")
        if np.shape(actions) != self.action_space.shape:
            raise ValueError(f"action of shape {np.shape(actions)}: this environment wants {self.action_space.shape}")
        return self.finish_step(play(self._cover, np.asarray(actions)[:, 0]))

    def finish_step(self, played: TextStep) -> tuple[Observation, Floats, NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Draw the blocks of laws that have been measured already, and move on."""
        task, copies = self.task, self.num_envs
        chosen = draw_candidates(played.induced, np.array([rng.random() for rng in self._rngs]))
        self._number += 1
        self._cost_so_far = self._cost_so_far + task.gamma**self._number * played.cost
        infos = self._infos(played.rate, played.cost, chosen)
        ended = self._number == task.blocks
        if ended:
            last = text_observation(self._cover, np.full(copies, self._number), np.ones(copies, dtype=np.bool_))
            final_obs = np.full(copies, None, dtype=object)
            for copy in range(copies):
                final_obs[copy] = {name: values[copy] for name, values in last.items()}
            everyone = np.ones(copies, dtype=np.bool_)
            infos = {"final_obs": final_obs, "_final_obs": everyone, "final_info": infos, "_final_info": everyone}
            observation = self._begin()
            infos |= self._infos(np.zeros(copies), np.zeros(copies), np.full(copies, -1))
        else:
            pairs = zip(self._contexts, chosen.tolist(), strict=True)
            self._contexts = [task.contexts.follow(context, candidate) for context, candidate in pairs]
            self._cover = task.contexts.covers(self._contexts)
            observation = self._observation()
        return observation, played.rate, np.full(copies, ended), np.zeros(copies, dtype=np.bool_), infos

    @property
    def cover(self) -> Floats:
        """P(x|s) of the context that each text has reached, shape (num_envs, Q), float64."""
        return self._cover.copy()

    def _begin(self) -> Observation:
        self._contexts = [self.task.contexts.start(rng.random()) for rng in self._rngs]
        self._cover = self.task.contexts.covers(self._contexts)
        self._number, self._cost_so_far = 0, np.zeros(self.num_envs)
        return self._observation()

    def _infos(self, rate: Floats, cost: Floats, candidate: Ints) -> Infos:
        """In Gymnasium's form: beside every array a mask of the copies that have it."""
        infos: Infos = dict(info_columns(self.task, rate, cost, self._cost_so_far)) | {"candidate": candidate}
        return infos | {f"_{name}": np.ones(len(values), dtype=np.bool_) for name, values in infos.items()}

    def _observation(self) -> Observation:
        copies = self.num_envs
        return text_observation(self._cover, np.full(copies, self._number), np.zeros(copies, dtype=np.bool_))


def make_task(
    source: str = "chain",
    blocks: int = 8,
    candidates: int = 8,
    labels: int = 8,
    epsilon: float = 0.4,
    gamma: float = 1.0,
    prompts: int = 50,
    temperature: float = 1.0,
    source_seed: int = 0,
) -> TextTask:
    """The task of some arguments of `CovertWatermarkText`.

    Raises:
        ValueError: an argument is out of range or does not fit the source.
        OSError: the tree cannot be read.
    """
    source = name_or_path("source", source)
    epsilon, gamma, temperature = (
        number(*pair) for pair in (("epsilon", epsilon), ("gamma", gamma), ("temperature", temperature))
    )
    names = ("blocks", "candidates", "labels", "prompts", "source_seed")
    values = (blocks, candidates, labels, prompts, source_seed)
    blocks, candidates, labels, prompts, source_seed = map(integer, names, values)
    check_budget(epsilon, gamma)
    contexts = _open(source, blocks, candidates, prompts, temperature, source_seed)
    if blocks < 1 or (contexts.depth is not None and blocks > contexts.depth):
        raise ValueError(f"blocks={blocks}: this source has 1 to {contexts.depth or 'any number of'}")
    make_objective("gp", contexts.block_length, labels)
    return TextTask(contexts, labels, blocks, epsilon, gamma)


def _open(source: str, blocks: int, candidates: int, prompts: int, temperature: float, seed: int) -> Contexts:
    if source == "chain":
        most = np.log2(max(2, candidates))
        chain = random_chain(prompts, candidates, (0.5 * most, 0.9 * most), seed)
        return ChainContexts(chain, f"chain kinds={prompts} candidates={candidates} seed={seed}")
    if source == "live":
        return _live(blocks, candidates, prompts, temperature, seed)
    whole = open_tree(source)
    if not 1 <= prompts <= len(whole.prior):
        raise ValueError(f"prompts={prompts}: this tree has 1 to {len(whole.prior)}")
    return TreeContexts(subset(whole, range(prompts), candidates))


def _live(blocks: int, candidates: int, prompts: int, temperature: float, seed: int) -> Contexts:
    # Imported only here: the other sources do without a language model.
    from wm_env.lm.build.states import encode_prompts
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.pools.settings import PoolSettings
    from wm_env.lm.prompts import read_prompts
    from wm_env.texts.live_contexts import LiveContexts

    length = 8
    beam, rows = 2 * candidates, 8 * -(-candidates // 4)  # rows are a multiple of 8
    settings = PoolSettings("top", length, candidates, temperature, beam, rows)
    lm = load_lm("mini")
    return LiveContexts(lm, encode_prompts(lm, read_prompts("shipped", prompts, seed), blocks * length), settings)


def spaces_of(task: TextTask) -> tuple[ProductOfSimplices, Dict]:
    """The action and the observation space of one text."""
    candidates = task.contexts.candidates
    return ProductOfSimplices(1, task.labels, candidates), Dict(
        state_probs=Box(0.0, 1.0, (1,), np.float32),
        cover=Box(0.0, 1.0, (candidates,), np.float32),
        block=Discrete(task.blocks),
    )


def text_observation(cover: Floats, block: Ints, ended: NDArray[np.bool_]) -> Observation:
    """What texts at some blocks show, with the copies as first axis; zeros for a text that has ended."""
    alive = ~ended[:, None]
    return {
        "state_probs": alive.astype(np.float32),
        "cover": (cover * alive).astype(np.float32),
        "block": np.where(ended, block - 1, block),
    }


def info_columns(task: TextTask, rate: Floats, cost: Floats, cost_so_far: Floats) -> dict[str, Floats]:
    """Numbers of some texts, shape (n,) each, float64; see `CovertWatermarkText`."""
    bound = task.bound
    return {
        "cost": cost.copy(),
        "rate_per_token": rate / task.contexts.block_length,
        "cost_so_far": cost_so_far.copy(),
        "rate_bound": np.full(len(cost), bound.rate),
        "optimal_rate": np.full(len(cost), bound.rate if bound.exact else np.nan),
    }


def draw_candidates(law: Floats, uniform: Floats) -> Ints:
    """The candidate at a point of the distribution function of each row, shape (n,), int64; never one of mass 0."""
    above = law.cumsum(1)
    chosen: Ints = (above <= uniform[:, None] * above[:, -1:]).sum(1)
    return chosen


def check_no_options(options: Any) -> None:
    """Refuse reset options.

    Raises:
        ValueError: there are some.
    """
    if options_or_none(options):
        raise ValueError(f"options={options}: this environment has none")
