import csv

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agents.common.log import Begun, TrainingLog, heat_maps
from agents.common.runs import RunFolder
from agents.planner.rate import plan


def rows_of(folder):
    with folder.metrics.open(newline="") as file:
        return list(csv.DictReader(file))


def events_of(folder):
    events = EventAccumulator(str(folder.path))
    events.Reload()
    return events


def test_csv_and_tensorboard_have_the_same_numbers(tmp_path, small_tree):
    folder = RunFolder(tmp_path / "run")
    with TrainingLog(folder) as log:
        log.add(0, {"eval/rate": 0.1 + 0.2, "eval/cost": 0.5})
        log.add(10, {"eval/rate": 1.25, "eval/cost": 0.25})
        log.add_laws(10, plan(small_tree, 0.1, labels=8).law)
        log.add_result(10, {"epsilon": 0.1, "blocks": None}, {"rate": 1.25})
    assert [(row["iteration"], float(row["eval/rate"])) for row in rows_of(folder)] == [("0", 0.1 + 0.2), ("10", 1.25)]
    events = events_of(folder)
    assert [(event.step, event.value) for event in events.Scalars("eval/cost")] == [(0, 0.5), (10, 0.25)]
    assert set(events.Tags()["images"]) == {
        f"block_{number}/{name}" for number in (1, 2) for name in ("labels", "candidates")
    }


def test_resumed_log_drops_what_came_after(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with TrainingLog(folder) as log:
        for iteration in (0, 10, 20):
            log.add(iteration, {"eval/rate": float(iteration)})
            if iteration == 10:
                begun = Begun(10, log.fingerprint)
    # Event files are read in the order of their names, which begin with the second that they were opened in.
    (events,) = folder.path.glob("events.out.tfevents.*")
    events.rename(folder.path / "events.out.tfevents.0000000001")
    with TrainingLog(folder, begun) as log:
        log.add(20, {"eval/rate": -20.0})
    assert [float(row["eval/rate"]) for row in rows_of(folder)] == [0.0, 10.0, -20.0]
    assert [event.value for event in events_of(folder).Scalars("eval/rate")] == [0.0, 10.0, -20.0]


def test_heat_map_shows_the_table_with_states_downwards():
    table = torch.tensor([[0.1, 0.9], [0.6, 0.4], [0.5, 0.5]])
    figure = heat_maps({"labels, P(u|s)": (table, "label u")}, "state s (number)")
    image = figure.axes[0].images[0]
    assert (image.get_array() == table.numpy()).all()
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("label u (number)", "state s (number)")
    assert image.get_clim() == pytest.approx((0.0, 0.9))


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (4, 20), (60, 64)])
def test_every_heat_map_has_whole_ticks_and_a_bar_on_the_common_scale(shape):
    tables = {"one": (torch.full(shape, 0.25), "candidate x"), "other": (torch.full(shape, 0.5), "candidate x")}
    figure = heat_maps(tables, "state s (number)")
    figure.draw_without_rendering()
    panels, bars = figure.axes[:2], figure.axes[2:]
    assert [bar.get_ylabel() for bar in bars] == ["probability"] * 2
    assert [panel.images[0].get_clim() for panel in panels] == [(0.0, 0.5)] * 2
    for panel in panels:
        for axis, size in ((panel.xaxis, shape[1]), (panel.yaxis, shape[0])):
            low, high = sorted(axis.get_view_interval())
            shown = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
            assert shown
            assert all(tick == round(tick) for tick in shown)
            assert 0 <= min(shown) <= max(shown) < size


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_text(""),
        lambda path: path.write_text("iteration,eval/rate\n"),
        lambda path: path.write_text("iteration,eval/rate\n10,1.0\n"),
        lambda path: path.write_text("iteration,eval/rate\n0,1.0\n"),
        lambda path: path.write_text("iteration,eval/rate\n0,1.0\nten,1.0\n"),
        lambda path: path.write_bytes(path.read_bytes()[:-8]),
        lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()),
        lambda path: path.write_text("a,b\n1,2\n"),
        lambda path: path.write_text("iteration,a\n1,2,3\n"),
        *(
            lambda path, old=old, new=new: path.write_text(path.read_text().replace(old, new))
            for old, new in (
                ("eval/rate", "eval/late"),
                ("eval/rate", "eval/cost"),
                ("eval/rate", "iteration"),
                ("\n10,1.0", "\n10,xyz"),
                ("\n10,1.0", "\n10,1.00"),
                ("\n10,1.0", "\n10," + "1" * 200_000),
                ("\n10,", "\n10.0,"),
                ("\n10,", "\nnan,"),
                ("\n10,1.0,0.125", "\n10,1.0,0.125\n10,1.0,0.125"),
                ("\n10,1.0,0.125", "\n7,1.0,0.125\n10,1.0,0.125"),
                ("\n10,1.0,0.125", "\n10,1.0,0.125\n-5,1.0,0.125"),
                ("\n0,1.0,0.125\n10,1.0,0.125", "\n10,1.0,0.125\n0,1.0,0.125"),
            )
        ),
    ],
)
def test_damaged_metrics_are_refused_before_anything_is_written(tmp_path, spoil):
    folder = RunFolder(tmp_path / "run")
    with TrainingLog(folder) as log:
        for iteration in (0, 10):
            log.add(iteration, {"eval/rate": 1.0, "eval/cost": 0.125})
        begun = Begun(13, log.fingerprint)
    spoil(folder.metrics)
    before = sorted(path.name for path in folder.path.iterdir())
    with pytest.raises(ValueError, match=r"metrics\.csv is missing or damaged"):
        TrainingLog(folder, begun)
    assert sorted(path.name for path in folder.path.iterdir()) == before


def test_metrics_that_say_the_same_are_taken(tmp_path):
    """As another program writes them: other ends of lines, empty lines, later rows; columns may begin late."""
    folder = RunFolder(tmp_path / "run")
    with TrainingLog(folder) as log:
        log.add(0, {"eval/rate": 1.0})
        log.add(10, {"train/loss": 0.5, "eval/rate": 2.0})
        begun = Begun(10, log.fingerprint)
        before = folder.metrics.read_text()
        log.add(20, {"eval/rate": 3.0, "late": 1.0})
    folder.metrics.write_bytes(folder.metrics.read_bytes().replace(b"\n", b"\r\n\r\n"))
    with TrainingLog(folder, begun) as log:
        assert log.fingerprint == begun.fingerprint
        log.add(30, {"eval/rate": 4.0})
    assert folder.metrics.read_text() == f"{before}30,4.0,\n"
