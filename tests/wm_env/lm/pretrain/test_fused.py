"""The pass in training against transformers' own, with the weights that are published."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_pretraining import SHAPE
from torch import Tensor
from torch.nn import functional

from wm_env.lm.models.exact.quantise import W8, quantise_matrix
from wm_env.lm.models.llada_config import LLaDAConfig
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.network import build_network
from wm_env.lm.pretrain.checkpoint import save_integers
from wm_env.lm.pretrain.corpus import train_tokenizer
from wm_env.lm.pretrain.fused import FusedPass
from wm_env.lm.pretrain.objective import mask_batch, masked_loss, next_token_loss, plan_responses
from wm_env.lm.pretrain.rounding import rounded, rounded_state
from wm_env.lm.pretrain.training import network_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def config() -> LLaDAConfig:
    return network_config(SHAPE, train_tokenizer(["one two three four five six seven"], 280, 64))


def _network(config: LLaDAConfig):
    """Weights of a usual size and gains that are not 1."""
    torch.manual_seed(3)
    network = build_network(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(
                torch.randn_like(parameter) * 0.3 if parameter.ndim == 2 else 1 + 0.3 * torch.rand_like(parameter)
            )
    return network


def _published(network, config: LLaDAConfig):
    published = build_network(config)
    published.load_state_dict(rounded_state(network, config), strict=False)
    return published.eval()


def _windows() -> Tensor:
    return torch.randint(3, 280, (5, 24), generator=torch.Generator().manual_seed(0))


def test_masked_loss_is_that_of_the_published_network(config: LLaDAConfig) -> None:
    network = _network(config)
    published = _published(network, config)
    plan = plan_responses(5, 24, 0.2, 0.5, 0.5, CPU)
    batch = mask_batch(_windows(), plan, config.mask_token_id, torch.Generator().manual_seed(1))
    states = published.model(batch.canvas).last_hidden_state
    expected = masked_loss(states, published.lm_head.weight, batch)
    torch.testing.assert_close(FusedPass(network, config, CPU).masked_loss(batch), expected, rtol=1e-5, atol=0)


def test_next_token_loss_is_that_of_the_published_network_on_prefixes(config: LLaDAConfig) -> None:
    """With attention to the left, position i sees what a network with attention both ways sees of the prefix alone,
    in the first layer; so a network of one layer can be compared one prefix at a time."""
    network, windows = _network(config), _windows()
    published = _published(network, config)
    losses = []
    for end in range(1, 24):
        logits = published.lm_head(published.model(windows[:, :end]).last_hidden_state[:, -1])
        losses.append(functional.cross_entropy(logits, windows[:, end]))
    ours = FusedPass(network, config, CPU).next_token_loss(windows)
    torch.testing.assert_close(ours, torch.stack(losses).mean(), rtol=1e-5, atol=0)
    states = torch.randn(5, 24, 16)
    head = torch.randn(280, 16)
    expected = [
        -torch.log_softmax((head @ states[row, i]).double(), 0)[windows[row, i + 1]]
        for row in range(5)
        for i in range(23)
    ]
    assert float(next_token_loss(states, head, windows)) == pytest.approx(float(torch.stack(expected).mean()), rel=1e-5)


def test_the_stored_integers_have_the_law_of_the_network_in_training(config: LLaDAConfig, tmp_path: Path) -> None:
    """Stored from the unrounded weights and from the rounded ones; read in float and in exact arithmetic."""
    network = _network(config)
    published = _published(network, config)
    tokenizer = train_tokenizer(["one two three four five six seven"], 280, 64)
    canvas = _windows()
    canvas[:, 20:] = config.mask_token_id
    logits = published.lm_head(published.model(canvas).last_hidden_state[:, 20]).double()
    for folder, stored in ((tmp_path / "a", network), (tmp_path / "b", published)):
        save_integers(folder, stored, config, tokenizer)
        law = load_lm(folder, arithmetic="float")
        expected = law.log2_law(logits, 1.0)
        allowed = ~law.banned
        torch.testing.assert_close(law.log2_probs(canvas, 20, 1.0)[:, allowed], expected[:, allowed], rtol=0, atol=1e-4)
        exact = load_lm(folder).log2_probs(canvas, 20, 1.0)
        torch.testing.assert_close(exact[:, allowed], expected[:, allowed], rtol=0, atol=2e-2)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first if first[name].dtype == torch.int8)


def test_rounded_weights_are_the_published_integers_and_the_gradient_passes() -> None:
    weight = torch.randn(7, 12, requires_grad=True)
    values = rounded(weight)
    matrix = quantise_matrix(weight.detach(), W8)
    assert torch.equal(values, matrix.q * matrix.scale[:, None])
    direction = torch.randn(7, 12)
    (values * direction).sum().backward()
    assert torch.equal(weight.grad, direction)


def test_gains_get_the_gradient_of_the_network_with_gains(config: LLaDAConfig) -> None:
    """Against transformers' network at a point where rounding does nothing: its matrices are integers times a scale."""
    network = _network(config)
    network.load_state_dict(rounded_state(network, config), strict=False)
    windows = _windows()
    plan = plan_responses(5, 24, 1.0, 0.0, 0.0, CPU)
    batch = mask_batch(windows, plan, config.mask_token_id, torch.Generator().manual_seed(1))
    FusedPass(network, config, CPU).masked_loss(batch).backward()
    ours = {name: parameter.grad.clone() for name, parameter in network.named_parameters()}
    network.zero_grad()
    masked_loss(network.model(batch.canvas).last_hidden_state, network.lm_head.weight, batch).backward()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-3, atol=1e-6, msg=name)
