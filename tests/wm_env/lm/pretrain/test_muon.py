import numpy as np
import pytest
import torch

from wm_env.lm.pretrain.muon import Muon, orthogonalise


@pytest.mark.parametrize("shape", [(3, 6, 6), (2, 10, 4), (2, 4, 10)])
def test_singular_vectors_stay_and_singular_values_come_near_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for before, after in zip(matrices.numpy(), orthogonalise(matrices).numpy(), strict=True):
        left, _, right = np.linalg.svd(before.astype(np.float64), full_matrices=False)
        core = left.T @ after @ right.T
        assert abs(core - np.diag(np.diag(core))).max() < 1e-3
        assert np.all((np.diag(core) > 0.6) & (np.diag(core) < 1.3))


def test_matrices_of_a_stack_do_not_mix() -> None:
    matrices = torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([orthogonalise(matrix[None]) for matrix in matrices])
    torch.testing.assert_close(orthogonalise(matrices), alone)


def test_two_steps_follow_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(shape, generator=generator) for shape in ((3, 3), (4, 2), (3, 3))]
    expected = [parameter.clone() for parameter in parameters]
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    optimizer = Muon(parameters, lr=0.1, momentum=0.9, weight_decay=0.5)
    for _ in range(2):
        for index, parameter in enumerate(parameters):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            momenta[index] = 0.9 * momenta[index] + parameter.grad
            direction = orthogonalise((parameter.grad + 0.9 * momenta[index])[None])[0]
            size = 0.2 * max(parameter.shape) ** 0.5
            expected[index] = (1 - 0.1 * 0.5) * expected[index] - 0.1 * size * direction
        optimizer.step()
    for parameter, value in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter, value)
    assert set(optimizer.state[parameters[0]]) == {"momentum"}


def test_an_update_has_the_size_of_one_of_adamw() -> None:
    """Root mean square 0.2 times the learning rate, for any shape."""
    for shape in ((40, 40), (80, 20), (20, 80)):
        parameter = torch.zeros(shape)
        parameter.grad = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        Muon([parameter], lr=1.0, weight_decay=0.0).step()
        assert float(parameter.square().mean().sqrt()) == pytest.approx(0.2, rel=0.25)


def test_a_parameter_without_a_gradient_stays() -> None:
    parameter = torch.ones(2, 2)
    Muon([parameter], lr=1.0).step()
    assert torch.equal(parameter, torch.ones(2, 2))
