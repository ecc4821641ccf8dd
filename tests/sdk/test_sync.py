"""The blocking client: what a script or a notebook writes without `await`."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import muster
import muster.testing
from muster import url
from tests.waiting import PATIENT_S


class Elsewhere:
    """An instance on a loop of its own thread: a blocking client holds up the thread that it is in."""

    def __init__(self) -> None:
        self._loop, self._ended = asyncio.new_event_loop(), threading.Event()
        began = threading.Event()

        async def serve() -> None:
            async with muster.testing.instance() as address:
                self.address = address
                began.set()
                await asyncio.to_thread(self._ended.wait)

        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(serve()))
        self._thread.start()
        assert began.wait(PATIENT_S)

    def end(self) -> None:
        self._ended.set()
        self._thread.join(PATIENT_S)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    @property
    def url(self) -> str:
        return url.text(self.address.gateways, self.address.token)


@pytest.fixture(scope="module")
def there() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.end()


def test_a_script_publishes_reads_and_asks_without_await(there: Elsewhere) -> None:
    with muster.sync.connect(there.url) as client:
        with client.join("r") as room:
            position = client.publish("r", b"one")
            client.publish("r", json=["two"])
            first, second = next(room), room.next(timeout=PATIENT_S)
            assert isinstance(first, muster.Message)
            assert isinstance(second, muster.Message)
            assert (first.position, first.data, second.json()) == (position, b"one", ["two"])
            assert client.members("r").count == 1
            assert (room.name, room.history, room.stats()["delivered"]) == ("r", muster.History(0, True), 2)
        assert list(room) == [], "the iteration ends with the membership"
        with pytest.raises(muster.Invalid, match="r: the room was left"):
            room.next()
        assert client.stats()["published"] == 2
        assert not client.closed
    assert client.closed
    with pytest.raises(muster.Closed):
        client.publish("r", b"x")


def test_a_wait_that_ends_early_loses_nothing(there: Elsewhere) -> None:
    with muster.sync.connect(there.url) as client, client.join("late") as room:
        with pytest.raises(muster.TimedOut, match=r"late: nothing came in 0\.01 s"):
            room.next(timeout=0.01)
        for number in range(3):
            client.publish("late", b"%d" % number)
        assert [room.next(timeout=PATIENT_S).data for _ in range(3)] == [b"0", b"1", b"2"]  # type: ignore[union-attr]


def test_positions_stand_after_what_was_read_and_not_after_what_was_fetched(there: Elsewhere) -> None:
    with muster.sync.connect(there.url) as client, client.join("kept"):
        with client.join("read") as room:
            for number in range(5):
                client.publish("read", b"%d" % number)
            assert [room.next(20).data for _ in range(2)] == [b"0", b"1"]  # type: ignore[union-attr]
            positions = room.positions
        assert room.positions == positions
        with client.join("read", positions=positions) as room:
            assert [room.next(20).data for _ in range(3)] == [b"2", b"3", b"4"]  # type: ignore[union-attr]


def test_errors_are_those_of_the_library(there: Elsewhere, tmp_path: Path) -> None:
    with pytest.raises(muster.Unavailable, match="start one: muster up"):
        muster.sync.connect(tmp_path)
    with muster.sync.connect(there.url) as client:
        with pytest.raises(muster.BadRoomName):
            client.join("UPPER:x")
        with pytest.raises(muster.Invalid, match="give one of them"):
            client.publish("r", b"x", json=1)


async def test_it_works_beside_a_running_loop_and_not_in_its_own(there: Elsewhere) -> None:
    """As in a notebook."""
    client = muster.sync.connect(there.url)
    assert client.publish("r", b"x")

    async def inside() -> None:
        client.publish("r", b"y")

    with pytest.raises(muster.Invalid, match="would wait for itself"):
        client._loop.run(inside())
    client.close()


def test_a_forked_child_raises_and_the_parent_goes_on(there: Elsewhere) -> None:
    with muster.sync.connect(there.url) as client:
        if not (child := os.fork()):
            try:
                client.publish("r", b"x")
            except muster.Invalid:
                os._exit(7)
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert client.publish("r", b"x")


def test_a_script_that_closes_nothing_ends_and_its_messages_are_there(there: Elsewhere) -> None:
    script = "import muster, sys\nmuster.sync.connect(sys.argv[1]).publish('forgotten', b'x')\n"
    done = subprocess.run(
        [sys.executable, "-c", script, there.url], capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
