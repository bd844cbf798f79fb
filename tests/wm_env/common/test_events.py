"""TensorBoard's event files: in the order of writing whatever the clock says, and with a name in every error."""

import errno
import subprocess
import sys
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from wm_env.common import events
from wm_env.common.events import EventWriter, next_event_file


def scalars(folder):
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [(point.step, point.value) for point in reader.Scalars("rate")]


def write(folder, steps, purge_step=None):
    with EventWriter(folder, purge_step) as writer:
        for step in steps:
            writer.add_scalar("rate", step / 8, step)


def test_steps_are_in_order_after_the_clock_was_set_back(tmp_path, monkeypatch):
    write(tmp_path, range(5))
    usual = time.time
    monkeypatch.setattr(time, "time", lambda: usual() - 86_400)
    write(tmp_path, range(3, 7), purge_step=3)
    write(tmp_path, range(6, 9), purge_step=6)
    monkeypatch.undo()
    write(tmp_path, range(8, 10), purge_step=8)
    assert scalars(tmp_path) == [(step, step / 8) for step in range(10)]


def test_an_event_is_in_the_file_at_once(tmp_path):
    with EventWriter(tmp_path) as writer:
        writer.add_scalar("rate", 0.5, 1)
        assert scalars(tmp_path) == [(1, 0.5)]


def test_names_sort_behind_what_is_there(tmp_path):
    (tmp_path / "events.out.tfevents.9000000000.host.1.0").touch()
    (tmp_path / "metrics.csv").touch()
    assert next_event_file(tmp_path).name.startswith("events.out.tfevents.9000000001.")


def test_a_full_disk_is_an_error_of_the_caller_that_names_the_file(tmp_path, monkeypatch):
    full = tmp_path / "events"
    full.symlink_to("/dev/full")
    monkeypatch.setattr(events, "next_event_file", lambda folder: full)
    with pytest.raises(OSError, match="No space left") as refused:
        EventWriter(tmp_path)
    assert (refused.value.errno, refused.value.filename) == (errno.ENOSPC, str(full))


def test_a_file_that_reaches_the_largest_size_is_one_line(tmp_path):
    code = (
        "import resource\n"
        "from pathlib import Path\n"
        "from wm_env.common.command import exit_code\n"
        "from wm_env.common.events import EventWriter\n"
        "def work():\n"
        "    with EventWriter(Path('run')) as writer:\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "        for step in range(1000):\n"
        "            writer.add_scalar('rate', 0.5, step)\n"
        "raise SystemExit(exit_code(work))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    (file,) = (tmp_path / "run").iterdir()
    assert (done.returncode, done.stderr) == (1, f"error: run/{file.name}: File too large\n")
    assert 20 < len(scalars(tmp_path / "run")) < 100, "what fitted is read"
