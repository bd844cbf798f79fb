from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_lm import write_lm

from wm_env.lm.models.llada import exact_logits, llada_logits
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.marginals import marginals


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_lm(tmp_path_factory.mktemp("lm"))


@pytest.fixture(scope="module", params=["exact", "float"])
def lm(folder, request):
    return load_lm(folder, arithmetic=request.param)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_every_row_is_the_law_of_its_mask(lm, folder, temperature):
    found = marginals(lm, (0, 2, 3, 1), 3, temperature).numpy()
    canvas = torch.tensor([[0, 2, 3, 1, lm.mask_id, lm.mask_id, lm.mask_id]])
    with torch.no_grad():
        network = load_lm(folder, arithmetic="float").network
        logits = network(canvas, use_cache=False).logits[0].numpy().astype(np.float64)
    for row, position in enumerate((4, 5, 6)):
        weights = np.exp(logits[position, :6] / temperature)  # six tokens of text, the rest is banned
        assert found[row, :6] == pytest.approx(weights / weights.sum(), abs=2e-5)
        assert found[row, 6:].sum() == 0


def test_models_with_another_head_are_asked_mask_by_mask(lm):
    positions = []

    def logits_at(network, canvas, position):
        positions.append(position)
        return (exact_logits if lm.is_exact else llada_logits)(network, canvas, position)

    other = replace(lm, logits_at=logits_at)
    assert torch.allclose(marginals(other, (0, 1), 4, 1.0), marginals(lm, (0, 1), 4, 1.0), atol=1e-6)
    assert positions == [2, 3, 4, 5]


def test_refusals(lm):
    with pytest.raises(ValueError, match="canvas of 41 tokens"):
        marginals(lm, (0,) * 37, 4, 1.0)
    with pytest.raises(ValueError, match="temperature must be a positive number"):
        marginals(lm, (0,), 4, 0.0)
