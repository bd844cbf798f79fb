"""Devices by name: torch's own errors list all kinds that it was ever made for, and "meta" computes nothing."""

import torch

from wm_env.common.files import first_line


def usable_device(name: str | torch.device) -> torch.device:
    """The device of this name, such as "cpu", "cuda" or "cuda:0", if torch can compute there.

    Raises:
        ValueError: there is no such device, or torch cannot compute there.
    """
    needed = "cpu, cuda or cuda:N is needed"
    if not isinstance(name, str | torch.device):
        raise ValueError(f"device={name!r}: {needed}")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={str(name)!r}: {needed}") from None
    if device.type == "meta":
        raise ValueError(f"device={str(name)!r} holds no numbers: {needed}")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={str(name)!r} cannot be used here ({first_line(error)}): {needed}") from None
    return device
