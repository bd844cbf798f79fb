"""Bars on a terminal, lines elsewhere, at the times that the clock says."""

import io
import sys
from types import SimpleNamespace

import pytest

from wm_env.common import progress
from wm_env.common.progress import ProgressBar, duration


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand: the list's last number."""
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[-1]))
    return now


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self):
        return True


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_a_line_every_ten_seconds_with_the_time_left_at_the_pace_since_the_line_before(clock, capsys):
    with ProgressBar(100, "step") as bar:
        for second in range(1, 31):
            clock.append(float(second))
            bar.update(second if second <= 10 else 10 + 2 * (second - 10), note=lambda: "fine")
    first, second, third = lines(capsys)
    # After 1 s: 99 steps at 1 a second are more than a minute. Then 10 s later: 12 of 100 at 1.1 a second.
    assert "1/100 [00:01<01:39" in first
    assert first.endswith("1.00step/s], fine")
    assert "12/100 [00:11<01:20" in second
    # 32 of 100 at 2 a second.
    assert "32/100 [00:21<00:34" in third


def test_short_work_tells_nothing(clock, capsys):
    with ProgressBar(5) as bar:
        for second in range(1, 6):
            clock.append(float(second))
            bar.update(second, note=lambda: pytest.fail("nobody sees it"))
    assert not lines(capsys)


def test_where_no_lines_are_wanted_long_work_is_announced_once(clock, capsys):
    with ProgressBar(100, "it", 40, every=float("inf")) as bar:
        for done in range(40, 100):
            clock.append(float(done - 40) * 2)
            bar.update(done)
    (line,) = lines(capsys)
    assert "41/100 [00:02<01:58" in line


def test_a_total_may_come_later_and_work_may_begin_again(clock, capsys):
    with ProgressBar() as bar:
        clock.append(20.0)
        bar.update(10, counted="tokens")
        clock.append(40.0)
        bar.update(2, 50, "tokens")
        clock.append(60.0)
        bar.update(4, 50, "tokens")
    first, again, third = lines(capsys)
    assert first.startswith("tokens: 10")
    assert "2/50 [00:40<" in again
    # 46 at 2 in 20 seconds.
    assert "4/50 [01:00<07:40" in third


def test_a_process_that_another_speaks_for_is_silent(clock, capsys):
    with ProgressBar(10**6, shown=False) as bar:
        for second in (1.0, 20.0, 40.0):
            clock.append(second)
            bar.update(int(second))
        bar.say("nothing")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_and_lines_stand_above_it(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "SECONDS_BEFORE_BAR", 0.0)
    with ProgressBar(4, "step") as bar:
        assert bar.is_bar
        bar.update(1, note=lambda: "loss 2")
        bar.say("a line")
    assert capsys.readouterr().out == "a line\n"
    assert "1/4" in terminal.getvalue()
    assert "loss 2" in terminal.getvalue()


@pytest.mark.parametrize(("seconds", "told"), [(0.4, "00:00"), (59.6, "01:00"), (3725, "1:02:05")])
def test_durations(seconds, told):
    assert duration(seconds) == told
