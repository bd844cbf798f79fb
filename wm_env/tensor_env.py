"""Many copies of CovertWatermarkEnv-v0 on one device: tensors in, tensors out, nothing on the way through NumPy."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from wm_env.common.checks import integer, options_or_none, seed_or_none
from wm_env.common.foreign.devices import usable_device
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.criteria.credit import COST, PARENT, RATE, parents
from wm_env.criteria.objectives import Objective
from wm_env.env import CovertWatermarkEnv
from wm_env.information import entropy
from wm_env.labels.labelling import is_injective, label_candidates, label_entropy
from wm_env.law import BlockLaw, SharedSymbols, advance, induced_cover, shared_symbols
from wm_env.spaces import TOLERANCE

Observation = dict[str, Tensor]
Infos = dict[str, Any]


@dataclass(frozen=True)
class DeviceBlock:
    """One block of the problem on the device; shapes as in `wm_env.problem.BlockTensors`, with a last axis of size 1.

    Attributes:
        cover: P(x|s), shape (N, Q, 1), float64.
        symbol: shape (N, Q, 1), int64.
        child: next state of (s, x), shape (N, Q, 1), int64.
        support: shape (N, Q, 1), bool.
        parent: for every state of the next block the state that leads to it, padded with -1 to the N of the space.
        shared: the symbols that several states share.
        label: f(x) of `wm_env.labels.labelling`, shape (N, Q), int64; None where it is injective on every state.
        shown: the cover as it is observed, shape (1, N Q), float32, padded to the N of the space.
    """

    cover: Tensor
    symbol: Tensor
    child: Tensor
    support: Tensor
    parent: Tensor
    shared: SharedSymbols
    label: Tensor | None
    shown: Tensor


class Recorded:
    """A function of tensors on a CUDA device whose kernels are recorded once and then launched together.

    A step is a hundred small kernels, and launching them one by one takes ten times as long as they take to run. The
    function must not read anything back from the device.
    """

    @usual_torch()
    def __init__(self, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor):
        self._inputs = tuple(one.clone(memory_format=torch.contiguous_format) for one in inputs)
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            function(*self._inputs)  # kernels are loaded and workspaces made before the recording
        torch.cuda.current_stream().wait_stream(beside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = function(*self._inputs)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """What the function returns for these inputs, in memory of its own."""
        for kept, given in zip(self._inputs, inputs, strict=True):
            kept.copy_(given)
        self._graph.replay()
        return tuple(output.clone() for output in self._outputs)


class TensorEnv(VectorEnv[Observation, Tensor, Tensor]):
    """`num_envs` copies of one problem in step with each other, on one device.

    Made by `gymnasium.make_vec(ID, num_envs=n, vectorization_mode="vector_entry_point", device="cuda")`. Observations,
    actions, rewards, flags and infos are tensors on the device, with the copies as their first axis; the numbers are
    those of `CovertWatermarkVectorEnv` up to rounding, computed in float64.

    * All copies have the first prompts of the split and stand at the same block: episodes have one length.
    * Autoreset is "SameStep": the step that plays the last block returns the first observation of the next episode. Its
      last observation and its infos are in `infos["final_obs"]` and `infos["final_info"]`.
    * Nothing is read back from the device, so a law that the single environment would refuse is not refused here:
      the reward and the costs of its copy are NaN from that block to the end of the episode.

    Infos: `cost`, `rate_per_token`, `cost_so_far`, `rate_bound`, `optimal_rate`, as in the single environment.
    """

    def __init__(self, num_envs: int = 1, device: str | torch.device = "cpu", **arguments: Any):
        num_envs = integer("num_envs", num_envs)
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: at least one copy is needed")
        if arguments.get("render_mode") is not None:
            raise ValueError("the tensor environment does not render: use gymnasium.make for one that does")
        if AutoresetMode(arguments.pop("autoreset_mode", AutoresetMode.SAME_STEP)) is not AutoresetMode.SAME_STEP:
            raise ValueError("the tensor environment has autoreset_mode='SameStep' only")
        self.single = CovertWatermarkEnv(**arguments)
        if self.single.problem.channel is not None:
            raise ValueError("the tensor environment has no channel: use vectorization_mode='sync' or no device")
        self.device = usable_device(device)
        self.num_envs = num_envs
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_action_space = self._action_space()
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.single_observation_space = self.single.observation_space
        self.observation_space = batch_space(self.single.observation_space, num_envs)
        self._states = self.single.action_space.states
        self._blocks = tuple(self._on_device(number) for number in range(len(self.single.problem.blocks)))
        prior = torch.from_numpy(self.single.problem.tree.prior).to(self.device)
        self._prior = prior[:, None].expand(-1, num_envs)
        self._bound = self.single.objective.bound(self.single.problem)
        self._number = -1
        self._state_probs = self._prior
        self._law_played: tuple[int, Tensor, Tensor] | None = None
        self._recorded: dict[tuple[int, torch.dtype], Recorded] = {}
        self._cost_so_far = torch.zeros(num_envs, dtype=torch.float64, device=self.device)

    @usual_torch()
    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Infos]:
        """Start all copies at the prior over prompts.

        Raises:
            ValueError: options, of which there are none here, or a seed that is no integer >= 0.
        """
        if options_or_none(options):
            raise ValueError(f"options={options}: the tensor environment has none; use CovertWatermarkVectorEnv")
        if not isinstance(seed, list):
            seed_or_none(seed)
        self._begin()
        nothing = torch.zeros_like(self._cost_so_far)
        return self._observation(), self._infos(nothing, nothing)

    @usual_torch()
    def step(self, actions: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, Infos]:
        """Play one block of every copy; see the class.

        Raises:
            ValueError: not a tensor of the action space's shape.
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self._number < 0:
            raise gym.error.ResetNeeded("no episode has begun: call reset() first")
        if not isinstance(actions, Tensor) or actions.shape != self.action_space.shape:
            shape = tuple(actions.shape) if hasattr(actions, "shape") else type(actions).__name__
            raise ValueError(f"actions of shape {shape}: a tensor of shape {self.action_space.shape} is needed")
        number, problem = self._number, self.single.problem
        rate, cost, following = self._advance(number, self._state_probs, actions)
        self._cost_so_far = self._cost_so_far + problem.gamma ** (number + 1) * cost
        infos = self._infos(rate, cost)
        ended = number + 1 == len(self._blocks)
        if ended:
            infos = {"final_obs": self._final(), "final_info": infos}
            self._begin()
            nothing = torch.zeros_like(self._cost_so_far)
            infos |= self._infos(nothing, nothing)
        else:
            self._state_probs = following
            self._number += 1
        return self._observation(), rate, self._flags(ended), self._flags(False), infos

    def credit(self) -> dict[str, Tensor]:
        """`rate_by_state`, `cost_by_state` and `parent` of the last step, tensors (num_envs, N).

        See `wm_env.criteria.credit.CreditByState`; they outlast an automatic reset.

        Raises:
            gymnasium.error.ResetNeeded: nothing has been played.
        """
        if self._law_played is None:
            raise gym.error.ResetNeeded("nothing has been played: call step() first")
        number, state_probs, actions = self._law_played
        rate, cost = self._by_state(number, state_probs, self._law(number, state_probs, actions)[0])
        padded = torch.nn.functional.pad(torch.stack([rate, cost]), (0, 0, 0, self._states - len(rate))).mT
        parent = self._blocks[number].parent.expand(self.num_envs, -1)
        return {RATE: padded[0], COST: padded[1], PARENT: parent}

    def _action_space(self) -> gym.Space[Any]:
        return self.single.action_space

    def _advance(self, number: int, state_probs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What a block is worth in bits and what it costs, shape (copies,) each, and the law of the next state."""
        self._law_played = number, state_probs, actions
        if self.device.type != "cuda" or type(self.single.objective) is not Objective:
            return self._compute(number, state_probs, actions)
        key = number, actions.dtype
        if key not in self._recorded:
            self._recorded[key] = Recorded(partial(self._compute, number), state_probs, actions)
        rate, cost, following = self._recorded[key](state_probs, actions)
        return rate, cost, following

    def _compute(self, number: int, state_probs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        law, refused = self._law(number, state_probs, actions)
        rate, cost, induced = self._measure(number, state_probs, law)
        if number + 1 < len(self._blocks):
            states = len(self._blocks[number + 1].cover)
            state_probs = advance(state_probs, induced, self._blocks[number].child, states)
        return torch.where(refused, torch.nan, rate), torch.where(refused, torch.nan, cost), state_probs

    def _law(self, number: int, state_probs: Tensor, actions: Tensor) -> tuple[Any, Tensor]:
        """What is played, and which copies play something that is no law."""
        block = self._blocks[number]
        laws = actions[:, : len(block.cover)].movedim(0, -1).to(torch.float64)
        p_label, p_candidate = laws[:, :, 0], laws[:, :, 1:]
        refused = (laws < 0).flatten(0, 2).any(0)
        for total in (p_label.sum(1), p_candidate.sum(2)):
            refused |= ~((total - 1).abs() <= TOLERANCE).flatten(0, -2).all(0)
        p_candidate = p_candidate * block.support[:, None]
        p_label = p_label / p_label.sum(1, keepdim=True)
        p_candidate = p_candidate / p_candidate.sum(2, keepdim=True)
        law = BlockLaw(state_probs, block.cover, block.symbol, p_label, p_candidate, block.shared)
        return self.single.objective(law), refused

    def _measure(self, number: int, state_probs: Tensor, law: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Rate and cost, shape (copies,), and P~(x|s), shape (N, Q, copies)."""
        measured = self.single.objective.measure(law, self.single.problem.cost)
        return measured.rate, measured.cost, induced_cover(law)

    def _by_state(self, number: int, state_probs: Tensor, law: Any) -> tuple[Tensor, Tensor]:
        return self.single.objective.measure_by_state(law, self.single.problem.cost)

    def _begin(self) -> None:
        self._number = 0
        self._state_probs = self._prior
        self._cost_so_far = torch.zeros_like(self._cost_so_far)

    def _observation(self) -> Observation:
        block = self._blocks[self._number]
        state_probs = self._state_probs.T.float()
        return {
            "state_probs": torch.nn.functional.pad(state_probs, (0, self._states - state_probs.shape[1])),
            "cover": block.shown.expand(self.num_envs, -1),
            "block": torch.full((self.num_envs,), self._number, device=self.device),
        }

    def _infos(self, rate: Tensor, cost: Tensor) -> Infos:
        return {
            "cost": cost,
            "rate_per_token": rate / self.single.problem.tree.block_length,
            "cost_so_far": self._cost_so_far,
            "rate_bound": torch.full_like(self._cost_so_far, self._bound.rate),
            "optimal_rate": torch.full_like(self._cost_so_far, self._bound.rate if self._bound.exact else torch.nan),
        }

    def _final(self) -> Observation:
        """The observation after the last block."""
        return {
            "state_probs": torch.zeros(self.num_envs, self._states, device=self.device, dtype=torch.float32),
            "cover": torch.zeros_like(self._blocks[0].shown).expand(self.num_envs, -1),
            "block": torch.full((self.num_envs,), len(self._blocks) - 1, device=self.device),
        }

    def _flags(self, value: bool) -> Tensor:
        return torch.full((self.num_envs,), value, device=self.device)

    def _on_device(self, number: int) -> DeviceBlock:
        block, tree_block = self.single.problem.blocks[number], self.single.problem.tree.blocks[number]
        label = label_candidates(tree_block, self.single.labels)
        rows = self._states - len(block.cover)
        shown = torch.nn.functional.pad(block.cover.float(), (0, 0, 0, rows)).flatten()[None]
        shared = shared_symbols(block.symbol)
        return DeviceBlock(
            cover=block.cover[..., None].to(self.device),
            symbol=block.symbol[..., None].to(self.device),
            child=block.child[..., None].to(self.device),
            support=block.support[..., None].to(self.device),
            parent=parents(block.child, self._states).to(self.device),
            shared=SharedSymbols(
                shared.symbols, shared.rows.to(self.device), shared.numbers.to(self.device), shared.count
            ),
            label=None if is_injective(label) else label.to(self.device),
            shown=shown.to(self.device),
        )


class MarginalTensorEnv(TensorEnv):
    """`TensorEnv` whose actions are logits of the marginal q(x|s), with the labels of `wm_env.labels.labelling`.

    The action is a flat `Box(-bound, bound, (N Q,))`: one softmax over the candidates that a state has, in float64. Its
    rates and costs are those of the laws that `wm_env.labels.marginals.MarginalLogits` makes of the same logits,
    without these laws ever being written down: at 1000 states, 256 labels and 20 candidates, a 270th of the numbers.

    Raises:
        ValueError: the coded objective, or a bound that is no number above 0.
    """

    def __init__(self, num_envs: int = 1, device: str | torch.device = "cpu", bound: float = 20.0, **arguments: Any):
        if not 0 < bound < np.inf:
            raise ValueError(f"bound={bound}: a number above 0 is needed")
        self.bound = bound
        super().__init__(num_envs, device, **arguments)
        if type(self.single.objective) is not Objective:
            raise ValueError(
                f"objective={self.single.objective.name!r}: marginals with a labelling are for objective='gp'; use laws"
            )

    def _action_space(self) -> gym.Space[Any]:
        space = self.single.action_space
        return Box(-self.bound, self.bound, (space.states * space.candidates,), np.float32)

    def _law(self, number: int, state_probs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        block = self._blocks[number]
        states, candidates = block.cover.shape[:2]
        logits = actions[:, : states * candidates].T.reshape(states, candidates, -1).to(torch.float64)
        marginal = logits.masked_fill(~block.support, -torch.inf).softmax(1)
        # A logit that is not finite makes its copy's numbers NaN by itself.
        return marginal, torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    def _measure(self, number: int, state_probs: Tensor, law: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rate, cost = self._by_state(number, state_probs, law)
        return rate.sum(0), cost.sum(0), law

    def _by_state(self, number: int, state_probs: Tensor, law: Tensor) -> tuple[Tensor, Tensor]:
        block = self._blocks[number]
        worth = entropy(law, 1) if block.label is None else label_entropy(law, block.label, self.single.labels)
        return state_probs * worth, state_probs * self.single.problem.cost(law, block.cover)
