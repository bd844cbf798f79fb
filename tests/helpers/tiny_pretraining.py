"""A network that trains in milliseconds, and a text for it to learn."""

from dataclasses import replace
from pathlib import Path

from wm_env.lm.pretrain.cluster import Cluster
from wm_env.lm.pretrain.corpus import tokenize, train_tokenizer
from wm_env.lm.pretrain.recipe import Options, Shape
from wm_env.lm.pretrain.training import Trainer

SHAPE = Shape(d_model=16, n_layers=1, n_heads=2, mlp_hidden_size=24, vocab_size=280, max_sequence_length=64)


def counting_options(folder: Path) -> Options:
    """Six steps on a text that counts, so that there is something to learn and the held-out part is like the rest."""
    (folder / "a.txt").write_text("\n\n".join("one two three four five six seven " * 20 for _ in range(8)))
    (folder / "b.txt").write_text("\n\n".join("uno dos tres cuatro cinco seis\nsiete " * 20 for _ in range(8)))
    return Options(
        texts=(folder / "a.txt", folder / "b.txt"),
        weights=(2.0, 1.0),
        valid=folder / "a.txt",
        out=folder / "unused",
        shape=SHAPE,
        steps=6,
        tokens_per_step=512,
        warmup=2,
        validate_every=3,
        save_every=2,
        windows=8,
        device="cpu",
    )


def trained(options: Options, cluster: Cluster, steps: int) -> Trainer:
    """A network after so many steps."""
    tokenizer = train_tokenizer(["one two three four five six seven"], 280, 64)
    stream = tokenize(options.texts, tokenizer)
    trainer = Trainer(replace(options, steps=steps), cluster, tokenizer, stream)
    for step in range(steps):
        trainer.step(step, 1.0)
    return trainer
