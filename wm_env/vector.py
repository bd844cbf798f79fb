"""Many copies of CovertWatermarkEnv-v0 in one object: the same numbers, one tensor operation for all copies."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from wm_env.common.checks import check_known, integer, options_or_none, reals, seed_or_none
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.criteria.channel import BlockChannel, stack_channels
from wm_env.criteria.credit import COST, PARENT, RATE, parents
from wm_env.env import CovertWatermarkEnv, Observation, info_values, repair_action, repair_laws
from wm_env.information import Measures
from wm_env.law import BlockLaw, SharedSymbols, advance, induced_cover, shared_symbols
from wm_env.problem import BlockTensors, Problem
from wm_env.tensor_env import TensorEnv

Infos = dict[str, Any]
Flags = NDArray[np.bool_]
Copies = NDArray[np.int64]


class CovertWatermarkVectorEnv(VectorEnv[Observation, NDArray[Any], NDArray[Any]]):
    """`num_envs` copies of `CovertWatermarkEnv`, stepped together.

    Made by `gymnasium.make_vec("wm_env:CovertWatermarkEnv-v0", num_envs=n, vectorization_mode="vector_entry_point")`
    with the arguments of the single environment and one more. Observations, rewards, costs and infos are those of
    `gymnasium.vector.SyncVectorEnv` around single environments, in the same autoreset mode and with the same seeds, up
    to rounding in the last digits of a float64. Copies may stand at different blocks and have different prompts.

    ## Autoreset
    `autoreset_mode` is "NextStep" (Gymnasium's default), "SameStep" or "Disabled"; `metadata["autoreset_mode"]` tells.

    * NextStep: the call after the last block ignores the action, resets the copy and returns reward 0. Leave that
      transition out of a training buffer.
    * SameStep: the call that plays the last block returns the first observation of the next episode; the last
      observation and the info with the cost are in `infos["final_obs"]` and `infos["final_info"]`.
    * Disabled: call `reset(options={"reset_mask": finished})`.

    Options hold for one reset. Automatic resets have none, as in Gymnasium's own vector environments: to draw prompts
    for every episode, take "Disabled" and call `reset(options={"prompts": 2, "reset_mask": finished})`.

    ## Rendering
    None: render a single environment.
    """

    @usual_torch()
    def __init__(self, num_envs: int = 1, autoreset_mode: str | AutoresetMode = "NextStep", **arguments: Any):
        num_envs = integer("num_envs", num_envs)
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: at least one copy is needed")
        if arguments.get("render_mode") is not None:
            raise ValueError("the vector environment does not render: use gymnasium.make for one that does")
        self.single = CovertWatermarkEnv(**arguments)
        self.num_envs = num_envs
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self.single_action_space = self.single.action_space
        self.action_space = batch_space(self.single.action_space, num_envs)
        self.single_observation_space = self.single.observation_space
        self.observation_space = batch_space(self.single.observation_space, num_envs)

        self.problems = [self.single.problem] * num_envs
        space = self.single.action_space
        self._shape = (space.states, space.labels, 1 + space.candidates)
        self._prior = torch.zeros(self._shape[0], num_envs, dtype=torch.float64)
        self._stack_problems()
        self._rngs = [np.random.default_rng()] * num_envs
        self._state_probs = torch.zeros(self._shape[0], num_envs, dtype=torch.float64)
        self._number = np.full(num_envs, -1)
        self._cost_so_far = np.zeros(num_envs)
        self._rate_bound, self._optimal_rate = np.zeros(num_envs), np.full(num_envs, np.nan)
        self._played: list[_Play] = []

    @usual_torch()
    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Infos]:
        """Reset all copies, or those of `options["reset_mask"]`; the other options are those of the environment.

        Args:
            seed: copy i gets seed + i, or the i-th of a sequence.
            options: may hold `reset_mask`, a boolean array of shape (num_envs,) with at least one True.

        Raises:
            ValueError: a mask or a sequence of seeds of another size, or seeds or options that the environment refuses.
        """
        options = options_or_none(options)
        chosen = _chosen_copies(options.pop("reset_mask", None), self.num_envs)
        wanted = seeds_of(seed, self.num_envs)
        self.single.check_options(options)
        fresh = {
            copy: seeding.np_random(wanted[copy])[0]
            for copy in chosen
            if wanted[copy] is not None or self._number[copy] < 0
        }
        for copy in chosen:
            self._rngs[copy] = fresh.get(copy, self._rngs[copy])
        infos: Infos = {}
        self._begin(chosen, options, infos)
        return self._observation(), infos

    @usual_torch()
    def step(self, actions: NDArray[Any]) -> tuple[Observation, NDArray[np.float64], Flags, Flags, Infos]:
        """Play one block of every copy; see the class for what happens at the end of an episode.

        Raises:
            ValueError: no real numbers, wrong shape, NaN, a negative entry or a law without mass; names copy, state and
                label.
            gymnasium.error.ResetNeeded: before the first reset, or after the last block if autoreset is disabled.
        """
        actions = reals("action", actions)
        if actions.shape != self.action_space.shape:
            raise ValueError(f"action of shape {actions.shape}: this environment wants {self.action_space.shape}")
        ended = self._number == len(self._stacked)
        if (self._number < 0).any() or (ended.any() and self.autoreset_mode is AutoresetMode.DISABLED):
            raise gym.error.ResetNeeded("an episode has ended or never begun: call reset() first")
        infos: Infos = {}
        rewards = np.zeros(self.num_envs)
        groups = [np.flatnonzero(self._number == number) for number in np.unique(self._number[~ended])]
        # All actions are checked before a copy moves.
        moves = [self._move(copies, actions) for copies in groups]
        self._played = [self._play(move) for move in moves]
        for play in self._played:
            rewards[play.copies] = play.measured.rate.numpy()
            self._record(play.measured, play.copies, infos)
        terminated = ~ended & (self._number == len(self._stacked))
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and ended.any():
            self._begin(np.flatnonzero(ended), {}, infos)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and terminated.any():
            infos = self._finish(terminated, infos)
            self._begin(np.flatnonzero(terminated), {}, infos)
        return self._observation(), rewards, terminated, np.zeros(self.num_envs, dtype=np.bool_), infos

    def credit(self) -> dict[str, NDArray[Any]]:
        """`rate_by_state`, `cost_by_state` and `parent` of the last step, arrays (num_envs, N).

        See `wm_env.criteria.credit.CreditByState`. They outlast an automatic reset; zero and -1 for copies that were
        reset.
        """
        shape = (self.num_envs, self._shape[0])
        found = {RATE: np.zeros(shape), COST: np.zeros(shape), PARENT: np.full(shape, -1)}
        for play in self._played:
            rate, cost = self.single.objective.measure_by_state_behind(play.law, self.single.problem.cost, play.channel)
            found[RATE][play.copies, : len(rate)] = rate.T.numpy()
            found[COST][play.copies, : len(cost)] = cost.T.numpy()
            found[PARENT][play.copies] = parents(play.child, shape[1]).T.numpy()
        return found

    def _move(self, copies: Copies, actions: NDArray[Any]) -> "_Move":
        """The laws that some copies, all at one block, want to play there; nothing changes."""
        number = int(self._number[copies[0]])
        everyone = len(copies) == self.num_envs
        stacked = self._stacked[number] if everyone else self._stacked[number].of(copies)
        p_label, p_candidate = self._repair(actions if everyone else actions[copies], copies, stacked)
        return _Move(number, copies, stacked.tensors, stacked.shared, p_label, p_candidate, stacked.channel)

    def _play(self, move: "_Move") -> "_Play":
        """Play one block of some copies."""
        number, copies, block = move.number, move.copies, move.block
        state_probs = self._state_probs[: len(block.cover), torch.from_numpy(copies)]
        played = BlockLaw(state_probs, block.cover, block.symbol, move.p_label, move.p_candidate, move.shared)
        law = self.single.objective(played)
        if number + 1 < len(self._stacked):
            following = advance(state_probs, induced_cover(law), block.child, self._shape[0])
            self._state_probs[:, torch.from_numpy(copies)] = following
        measured = self.single.objective.measure_behind(law, self.single.problem.cost, move.channel)
        self._number[copies] += 1
        self._cost_so_far[copies] += self.single.problem.gamma ** (number + 1) * measured.cost.numpy()
        return _Play(copies, law, measured, block.child, move.channel)

    def _repair(self, actions: NDArray[Any], copies: Copies, stacked: "_Stacked") -> tuple[Tensor, Tensor]:
        # Copies last: see `wm_env.law.BlockLaw`.
        states, (_, labels, entries) = len(stacked.tensors.cover), self._shape
        flat = torch.from_numpy(actions).flatten(1)[:, : states * labels * entries]
        laws = torch.empty(flat.T.shape, dtype=torch.float64).copy_(flat.T).view(states, labels, entries, len(actions))
        if stacked.padding is not None:
            # Copies with fewer states than others: what their actions say there is ignored, so any law will do.
            by_copy = laws.movedim(3, 1)
            by_copy[..., 0].masked_fill_(stacked.padding[..., None], 1 / labels)
            by_copy[..., 1:].masked_fill_(stacked.padding[..., None, None], 1 / (entries - 1))
        try:
            return repair_laws(laws, stacked.tensors.support)
        except ValueError:
            for action, copy in zip(actions, copies, strict=True):
                support = self.problems[copy].blocks[int(self._number[copy])].support
                try:
                    repair_action(action, support, self._shape)
                except ValueError as error:
                    raise ValueError(f"copy {copy}: {error}") from None
            raise

    def _begin(self, copies: Copies, options: dict[str, Any], infos: Infos) -> None:
        """Start an episode in some copies."""
        drawn = [self.single.draw_problem(options, self._rngs[copy]) for copy in copies]
        changed = any(self.problems[copy] is not problem for copy, problem in zip(copies, drawn, strict=True))
        if changed:
            for copy, problem in zip(copies, drawn, strict=True):
                self.problems[copy] = problem
            self._stack_problems()
        self._number[copies] = 0
        self._cost_so_far[copies] = 0.0
        self._state_probs[:, torch.from_numpy(copies)] = self._prior[:, torch.from_numpy(copies)]
        bounds = [self.single.objective.bound(problem) for problem in drawn]
        self._rate_bound[copies] = [bound.rate for bound in bounds]
        self._optimal_rate[copies] = [bound.rate if bound.exact else np.nan for bound in bounds]
        self._record(None, copies, infos)

    def _stack_problems(self) -> None:
        self._stacked = _stack(self.problems, self._shape[0])
        priors = [torch.from_numpy(problem.tree.prior) for problem in self.problems]
        self._prior.zero_()
        for column, prior in zip(self._prior.T, priors, strict=True):
            column[: len(prior)] = prior

    def _finish(self, terminated: Flags, infos: Infos) -> Infos:
        """Move what the ended copies reported to `final_info` and their last observation to `final_obs`."""
        observation = self._observation()
        final_obs = np.full(self.num_envs, None, dtype=object)
        for copy in np.flatnonzero(terminated):
            final_obs[copy] = {name: values[copy] for name, values in observation.items()}
        moved: Infos = {"final_obs": final_obs, "_final_obs": terminated.copy()}
        if terminated.all():
            return moved | {"final_info": infos, "_final_info": terminated.copy()}
        final, kept = {}, {}
        for name, values in infos.items():
            final[name] = np.where(terminated, values, np.zeros_like(values))
            kept[name] = np.where(terminated, np.zeros_like(values), values)
        return moved | {"final_info": final, "_final_info": terminated.copy()} | kept

    def _record(self, measured: Measures | None, copies: Copies, infos: Infos) -> None:
        length = self.single.problem.tree.block_length
        sums = (self._cost_so_far[copies], self._rate_bound[copies], self._optimal_rate[copies])
        for name, values in info_values(measured, *sums, length).items():
            infos.setdefault(name, np.zeros(self.num_envs))[copies] = values
            infos.setdefault(f"_{name}", np.zeros(self.num_envs, dtype=np.bool_))[copies] = True

    def _observation(self) -> Observation:
        over = self._number == len(self._stacked)
        state_probs = self._state_probs.T.numpy().astype(np.float32, order="C")
        state_probs[over] = 0.0
        cover = np.zeros((self.num_envs, self._stacked[0].shown.shape[1]), dtype=np.float32)
        for number, stacked in enumerate(self._stacked):
            here = self._number == number
            cover[here] = stacked.shown[here]
        return {
            "state_probs": state_probs,
            "cover": cover,
            "block": np.where(over, len(self._stacked) - 1, self._number),
        }


def make_copies(num_envs: int = 1, device: str | None = None, **arguments: Any) -> CovertWatermarkVectorEnv | TensorEnv:
    """What `gymnasium.make_vec` makes: NumPy copies, or with `device` ("cpu", "cuda", "cuda:N") tensors on that device.

    Raises:
        ValueError: arguments that the environment refuses, or no such device.
    """
    if device is None:
        return CovertWatermarkVectorEnv(num_envs, **arguments)
    return TensorEnv(num_envs, device, **arguments)


@dataclass(frozen=True)
class _Stacked:
    """One block of all copies.

    Attributes:
        tensors: fields of shape (n, Q, copies), n the most states of a copy; (n, Q, 1) if all copies have one problem.
        shared: the symbols that several states of a copy share.
        padding: shape (n, copies), True where a copy has no such state; None if there is no padding.
        shown: the cover as observed, shape (copies, N * Q), float32.
        channel: of all copies, or size 1 at the end if all have one problem; None where nothing is edited.
    """

    tensors: BlockTensors
    shared: SharedSymbols
    padding: Tensor | None
    shown: NDArray[np.float32]
    channel: BlockChannel | None

    def of(self, copies: Copies) -> "_Stacked":
        """Some copies only."""
        columns = torch.from_numpy(copies)
        values = [getattr(self.tensors, field.name) for field in fields(BlockTensors)]
        tensors = BlockTensors(*(value if value.shape[2] == 1 else value[..., columns] for value in values))
        numbers = self.shared.numbers
        shared = replace(self.shared, numbers=numbers if numbers.shape[1] == 1 else numbers[:, columns])
        padding = None if self.padding is None else self.padding[:, columns]
        channel = self.channel
        if channel is not None and channel.output.shape[2] > 1:
            channel = BlockChannel(channel.kernel[..., columns], channel.output[..., columns])
        return _Stacked(tensors, shared, padding, self.shown[copies], channel)


@dataclass(frozen=True)
class _Move:
    """What some copies, all at block `number`, are about to play."""

    number: int
    copies: Copies
    block: BlockTensors
    shared: SharedSymbols
    p_label: Tensor
    p_candidate: Tensor
    channel: BlockChannel | None


@dataclass(frozen=True)
class _Play:
    """What some copies have just played."""

    copies: Copies
    law: BlockLaw
    measured: Measures
    child: Tensor
    channel: BlockChannel | None


def _stack(problems: list[Problem], states: int) -> list[_Stacked]:
    """All blocks of all copies; copies that share one problem share its memory."""
    copies = len(problems)
    alone = all(problem is problems[0] for problem in problems)
    stacked = []
    some = problems[:1] if alone else problems
    for number, blocks in enumerate(zip(*(problem.blocks for problem in some), strict=True)):
        channels = [channel for problem in some if (channel := problem.channels[number]) is not None]
        most = max(len(block.cover) for block in blocks)
        missing = [most - len(block.cover) for block in blocks]
        tensors = BlockTensors(
            cover=_pad([block.cover for block in blocks], missing, 0.0),
            symbol=_pad([block.symbol for block in blocks], missing, -1),
            child=_pad([block.child for block in blocks], missing, -1),
            support=_pad([block.support for block in blocks], missing, True),
        )
        shown = _pad([block.cover for block in blocks], [states - len(block.cover) for block in blocks], 0.0)
        padding = torch.arange(most)[:, None] >= most - torch.tensor(missing) if any(missing) else None
        flat = shown.float().movedim(2, 0).flatten(1).expand(copies, -1).numpy()
        channel = stack_channels(channels) if channels else None
        stacked.append(_Stacked(tensors, shared_symbols(tensors.symbol), padding, flat, channel))
    return stacked


def _pad(tensors: list[Tensor], missing: list[int], value: float) -> Tensor:
    """Stack (n_i, Q) to (n, Q, copies), filling up with `value`."""
    pairs = zip(tensors, missing, strict=True)
    return torch.stack([torch.nn.functional.pad(tensor, (0, 0, 0, rows), value=value) for tensor, rows in pairs], dim=2)


def seeds_of(seed: Any, copies: int) -> list[int | None]:
    """The seed of every copy: `seed` + its number, or its own of a sequence; None everywhere for None.

    Raises:
        ValueError: seeds that are no integers >= 0, or not one for each copy.
    """
    if seed is None:
        return [None] * copies
    if isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str) and np.ndim(seed) == 1:
        if len(seed) != copies:
            raise ValueError(f"{len(seed)} seeds for {copies} copies: pass one number or one seed for each")
        return [seed_or_none(one) for one in seed]
    first = seed_or_none(seed)
    return [None if first is None else first + copy for copy in range(copies)]


def _chosen_copies(mask: Any, copies: int) -> Copies:
    if mask is None:
        return np.arange(copies)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (copies,) or not mask.any():
        raise ValueError(
            f"options['reset_mask']={mask!r}: a boolean array of shape ({copies},) with at least one True is needed"
        )
    return np.flatnonzero(mask)


def _autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    if not isinstance(mode, AutoresetMode):
        check_known("autoreset_mode", mode, [known.value for known in AutoresetMode])
    return AutoresetMode(mode)
