"""The weighted mean of models of one run, rounded to 8-bit integers: often better than each of them.

python -m wm_env.lm.pretrain.mean --models runs/early/model runs/late/model --weights 0.35 0.65 --out runs/mean
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from wm_env.common.command import exit_code, quitting_on_interrupt, run_command
from wm_env.common.files import check_output, check_writable

with quitting_on_interrupt(__name__):
    import torch
    import tyro

    from wm_env.common.arguments import parse
    from wm_env.common.files import read_json
    from wm_env.lm.models.checkpoint_tokenizer import read_tokenizer
    from wm_env.lm.models.llada_config import LLaDAConfig
    from wm_env.lm.models.network import build_network
    from wm_env.lm.pretrain.checkpoint import save_integers
    from wm_env.lm.pretrain.training import load_start


@dataclass(frozen=True)
class Options:
    """Average the weights of models of one shape, which were trained from one another."""

    models: tuple[Path, ...]
    """Model folders."""
    weights: tuple[float, ...]
    """Weight of each, relative to their sum."""
    out: Path
    """Folder of the mean, as 8-bit integers."""


def write_mean(models: Sequence[Path], weights: Sequence[float], out: Path) -> None:
    """Write sum_i w_i model_i / sum_i w_i to `out`, rounded by `exact.quantise`.

    Raises:
        ValueError: there is no model, a weight is missing or not positive, or the models differ in shape or tokenizer.
        OSError: a file cannot be read or written.
    """
    if len(models) != len(weights) or not models:
        raise ValueError(f"{len(models)} models but {len(weights)} weights; give one a model")
    if not all(weight > 0 and isfinite(weight) for weight in weights):
        raise ValueError("weights must be positive numbers")
    config = LLaDAConfig.from_json(read_json(models[0] / "config.json"))
    tokenizer = read_tokenizer(models[0])
    network = build_network(config)
    total: dict[str, torch.Tensor] = {}
    for model, weight in zip(models, weights, strict=True):
        load_start(network, config, tokenizer, model)
        for name, tensor in network.state_dict().items():
            part = tensor.double() * (weight / sum(weights))
            total[name] = total[name] + part if name in total else part
    network.load_state_dict({name: tensor.to(torch.float32) for name, tensor in total.items()})
    save_integers(out, network, config, tokenizer)


def main() -> int:
    """Command line: exit code 0 when done, 2 for bad options or models, 1 if it fails later, 130 after Ctrl-C."""
    with quitting_on_interrupt(__name__):
        options = parse(Options, prog="python -m wm_env.lm.pretrain.mean", config=(tyro.conf.OmitArgPrefixes,))

    def work() -> None:
        check_writable(options.out, "choose another --out")
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            check_output(options.out / name, "choose another --out")
            if (options.out / name).exists():
                raise FileExistsError(f"{options.out} holds a model: choose another --out")
        write_mean(options.models, options.weights, options.out)

    return exit_code(work, "interrupted: nothing is complete")


if __name__ == "__main__":
    run_command(main)
