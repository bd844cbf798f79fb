"""How many processes torchrun has started, from what it puts into the environment."""

import os


def world_size() -> int:
    """Number of processes; 1 if torchrun has started none.

    Raises:
        ValueError: the environment says so in part only, or in words that are no numbers.
    """
    size = os.environ.get("WORLD_SIZE")
    if size is None:
        return 1
    advice = "torchrun sets it; unset WORLD_SIZE to work alone"
    if not (size.isascii() and size.isdigit() and int(size) > 0):
        raise ValueError(f"WORLD_SIZE={size!r} in the environment is no number of processes: {advice}")
    if int(size) == 1:
        return 1
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise ValueError(f"WORLD_SIZE={size} in the environment, but no {name}: {advice}")
    for name in ("RANK", "MASTER_PORT"):
        if not os.environ[name].isdigit():
            raise ValueError(f"{name}={os.environ[name]!r} in the environment is no number: {advice}")
    return int(size)
