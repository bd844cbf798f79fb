"""Where the files of a model are. Free of torch."""

import re
from collections.abc import Sequence
from pathlib import Path

from wm_env.common.files import first_line

EMBEDDED = Path(__file__).parents[1] / "mini"

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def find_model(source: str | Path, wanted: Sequence[str] = ("*.json", "*.safetensors", "merges.txt")) -> Path:
    """The folder of a model: the embedded one, one that is given, or a copy from the hub.

    Args:
        source: "mini", a folder, or a hub id "owner/name".
        wanted: patterns of the files that are fetched from the hub.

    Raises:
        ValueError: it is none of these.
        OSError: it could not be fetched.
    """
    if not isinstance(source, str | Path) or source == "":
        raise ValueError(f"unknown model {source!r}: give mini, the folder of a checkpoint, or a hub id owner/name")
    if source == "mini":
        return EMBEDDED
    if Path(source).is_dir():
        return Path(source)
    name = str(source)
    if not (isinstance(source, str) and _HUB_ID.fullmatch(name)):
        raise ValueError(f"unknown model {name!r}: give mini, the folder of a checkpoint, or a hub id owner/name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(wanted)))
    except Exception as error:  # the hub client and its transports raise dozens of unrelated classes
        raise OSError(f"{name!r} is no folder and could not be fetched from the hub: {first_line(error)}") from None
