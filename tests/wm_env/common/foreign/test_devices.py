"""Devices that torch does not know or cannot compute on are refused in one line."""

import pytest
import torch

from wm_env.common.foreign.devices import usable_device


@pytest.mark.parametrize("name", ["cpu", "cpu:0", torch.device("cpu")])
def test_the_processor_is_a_device(name):
    assert usable_device(name) == torch.device(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *[(name, "") for name in ("nope", "", "cuda:nope", "cuda:-1", None, 0, True)],
        *[(name, " holds no numbers") for name in ("meta", torch.device("meta"))],
        *[(name, r" cannot be used here \(.*\)") for name in ("cuda:99", torch.device("cuda", 99))],
    ],
)
def test_what_cannot_be_used_is_one_line(name, reason):
    shown = repr(str(name) if isinstance(name, torch.device) else name)
    with pytest.raises(ValueError, match=rf"^device={shown}{reason}: cpu, cuda or cuda:N is needed$") as refused:
        usable_device(name)
    assert "\n" not in str(refused.value)
