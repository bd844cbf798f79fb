"""What outgrows a machine: marks in a folder of JSONL or Parquet, read by Ray Data on all machines of a cluster.

    python examples/ray_data.py KEY TEXTS OUT

TEXTS is a file or folder with a column `text`; OUT is a folder for Parquet files with the columns of
`polar.text.schemes.robust.batch.RowReader` beside the old ones. Every process makes one receiver and keeps it.
"""

import sys
from pathlib import Path

try:
    import ray
    import ray.data
except ModuleNotFoundError as error:
    sys.exit(f"error: this example needs Ray Data ({error}): pip install 'ray[data]'")

from polar.text.keys.key import load_key
from polar.text.schemes.robust.batch import RowReader
from wm_env.lm.models.folder import EMBEDDED
from wm_env.lm.tokenizer import read_text_tokenizer


class Reader:
    """A process of the cluster: the rows come in, and go out with what was read of them."""

    def __init__(self, key):
        self._read = RowReader(key, read_text_tokenizer(EMBEDDED), "text")

    def __call__(self, row):
        return {**row, **self._read(row)}


def main(key_file, texts, out):
    key = load_key(Path(key_file))
    is_parquet = any(Path(texts).rglob("*.parquet")) or texts.endswith(".parquet")
    rows = (ray.data.read_parquet if is_parquet else ray.data.read_json)(texts)
    processes = int(ray.cluster_resources()["CPU"])
    read = rows.map(
        Reader, fn_constructor_args=[key], compute=ray.data.ActorPoolStrategy(min_size=1, max_size=processes)
    )
    read.write_parquet(out)
    done = ray.data.read_parquet(out)
    print(f"{done.count()} texts, {done.filter(lambda row: row['payload'] != '').count()} with a message")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("error: give KEY, TEXTS and OUT: python examples/ray_data.py KEY TEXTS OUT")
    main(*sys.argv[1:])
