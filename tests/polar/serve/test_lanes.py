import asyncio
import contextlib

import pytest
from starlette.requests import Request

from polar.serve.lanes import BusyError, GoneError, Lane, Progress, SlowError


def request(gone=None):
    """A request of somebody who hangs up when the event is set."""

    async def receive():
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


def test_work_is_done_in_turn_and_too_much_of_it_refused():
    async def play():
        lane, order, go = Lane("read", 1, 2), [], asyncio.Event()

        async def work(number):
            order.append(number)
            await go.wait()
            order.append(number)
            return number

        tasks = [asyncio.create_task(lane.run(request(), lambda n=number: work(n))) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="3 texts are being read or wait"):
            await lane.run(request(), lambda: work(3))
        go.set()
        assert await asyncio.gather(*tasks) == [0, 1, 2]
        assert order == [0, 0, 1, 1, 2, 2]
        assert lane.inside == 0
        assert await lane.run(request(), lambda: work(4)) == 4

    asyncio.run(play())


def test_work_that_the_end_of_the_server_cuts_off_is_refused():
    async def play():
        lane = Lane("read", 1, 2)
        task = asyncio.create_task(lane.run(request(), asyncio.Event().wait))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(GoneError, match="the server ends"):
            await task
        assert lane.inside == 0

    asyncio.run(play())


def test_work_of_those_who_hang_up_is_cancelled_and_others_have_their_turn():
    async def play():
        lane, gone, cancelled = Lane("read", 1, 2), asyncio.Event(), []

        async def endless():
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(True)

        async def short():
            return "done"

        first = asyncio.create_task(lane.run(request(gone), endless))
        await asyncio.sleep(0)
        second = asyncio.create_task(lane.run(request(), short))
        gone.set()
        with pytest.raises(GoneError):
            await first
        assert await second == "done"
        assert cancelled == [True]

    asyncio.run(play())


def test_errors_of_work_leave_the_lane_free():
    async def play():
        lane = Lane("read", 1, 0)

        async def wrong():
            raise ValueError("no")

        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                await lane.run(request(), wrong)

    asyncio.run(play())


def test_progress_ends_work_that_was_given_up_or_is_late():
    progress = Progress(3600.0)
    progress.report(3, 9, "tokens")
    assert (progress.done, progress.total) == (3, 9)
    progress.give_up()
    with pytest.raises(GoneError):
        progress.report(4, 9, "tokens")
    with contextlib.suppress(GoneError), pytest.raises(SlowError, match="5 of 9 tokens"):
        Progress(-1.0).report(5, 9, "tokens")
