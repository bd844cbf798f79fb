"""Pre-train a LLaDA from scratch: text files in, a checkpoint folder that `load_lm` reads out.

    python -m wm_env.lm.pretrain --texts news.xz wiki.xz --weights 3 1 --valid valid.txt --out runs/lm --minutes 20

On several GPUs: `torchrun --nproc-per-node 4 -m wm_env.lm.pretrain ...`; without a GPU it trains on the CPU.
"""

from wm_env.common.command import exit_code, quitting_on_interrupt, run_command
from wm_env.common.files import check_output, check_writable, reading

with quitting_on_interrupt(__name__):
    import tyro
    from transformers import PreTrainedTokenizerFast

    from wm_env.common.arguments import parse
    from wm_env.lm.models.checkpoint_tokenizer import read_tokenizer
    from wm_env.lm.pretrain.checkpoint import TrainingProgress, save_tokenizer
    from wm_env.lm.pretrain.cluster import Cluster
    from wm_env.lm.pretrain.corpus import TokenStream, interleave, load_or_tokenize, train_tokenizer
    from wm_env.lm.pretrain.recipe import Options
    from wm_env.lm.pretrain.training import run_pretraining


def pretrain(options: Options) -> TrainingProgress:
    """Run or continue a pre-training and return where it ended. See `Options`; call it in every process of a cluster.

    Raises:
        ValueError: options, texts or a checkpoint to resume do not fit.
        OSError: a file cannot be read or written.
    """
    with Cluster.join(options.device) as cluster:
        options.check(cluster.size)
        if cluster.first:
            _check_texts(options)
            _open_folder(options)
        cluster.wait()
        tokenizer, stream = _prepare_text(options, cluster)
        _check_sizes(options, stream)
        return run_pretraining(options, cluster, tokenizer, stream)


def _check_texts(options: Options) -> None:
    """Refuse what cannot be read before the minutes that the first texts take."""
    for path in (*options.texts, options.valid):
        with reading(path):
            path.open("rb").close()


def _open_folder(options: Options) -> None:
    for name in ("tokenizer", "model"):
        check_writable(options.out / name, "choose another --out")
    check_output(options.out / "tokens.safetensors", "choose another --out", "text_ends")
    for name in ("checkpoint.safetensors", "history.json"):
        check_output(options.out / name, "choose another --out")
    for name in ("checkpoint.safetensors", "history.json", "model"):
        if (options.out / name).exists() and not options.resume:
            raise FileExistsError(f"{options.out} holds a run; pass --resume to continue it, or name a new folder")
    options.out.mkdir(parents=True, exist_ok=True)


def _check_sizes(options: Options, stream: TokenStream) -> None:
    longest = options.shape.max_sequence_length
    begin = 0
    for path, end in zip(options.texts, stream.text_ends.tolist(), strict=True):
        if end - begin < longest:
            raise ValueError(f"{path} has {end - begin} tokens, fewer than the longest window of {longest}")
        begin = end


def _prepare_text(options: Options, cluster: Cluster) -> tuple[PreTrainedTokenizerFast, TokenStream]:
    """The tokenizer and the training tokens; the first process makes what is not there yet, the others read it."""
    folder = options.out / "tokenizer"
    cache = options.out / "tokens.safetensors"
    if cluster.first:
        if options.tokenizer is not None:
            save_tokenizer(folder, read_tokenizer(options.tokenizer))
        elif not (folder / "tokenizer.json").is_file():
            documents = interleave(options.text_weights())
            shape = options.shape
            save_tokenizer(folder, train_tokenizer(documents, shape.vocab_size, shape.max_sequence_length))
        load_or_tokenize(options.texts, read_tokenizer(folder), cache)
    cluster.wait()
    tokenizer = read_tokenizer(folder)
    return tokenizer, load_or_tokenize(options.texts, tokenizer, cache)


def main() -> int:
    """Command line: exit code 0 when done, 2 for bad options or texts, 1 if it fails later, 130 after Ctrl-C."""
    with quitting_on_interrupt(__name__):
        options = parse(Options, prog="python -m wm_env.lm.pretrain", config=(tyro.conf.OmitArgPrefixes,))

    def work() -> None:
        pretrain(options)

    return exit_code(work, "interrupted: give the same command with --resume to go on")


if __name__ == "__main__":
    run_command(main)
