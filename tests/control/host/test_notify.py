"""systemd gets what it asked for, nobody else gets anything, and nothing waits for it."""

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster_server.control.host.notify import Notify
from tests.waiting import until


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def heard(systemd: socket.socket) -> list[str]:
    """All waiting datagrams."""
    found: list[str] = []
    while True:
        try:
            found.append(systemd.recv(8192).decode())
        except BlockingIOError:
            return found


def test_lines_come_in_one_datagram_and_a_status_is_one_line(systemd: socket.socket) -> None:
    notify = Notify({"NOTIFY_SOCKET": systemd.getsockname()})
    notify.status("waits for\nwhat is \udcff", "READY=1")
    assert heard(systemd) == ["READY=1\nSTATUS=waits for what is \\udcff"]


@pytest.mark.parametrize(
    "address", ["", "vsock:2:1234", "/nowhere/at/all", "@nobody listens", "/" + "x" * 200, "/a\0b"]
)
def test_who_cannot_be_told_is_not(address: str) -> None:
    Notify({"NOTIFY_SOCKET": address} if address else {})("READY=1")


def test_who_does_not_listen_holds_nobody_up(systemd: socket.socket) -> None:
    notify = Notify({"NOTIFY_SOCKET": systemd.getsockname()})
    for _ in range(10_000):
        began = time.monotonic()
        notify("WATCHDOG=1")
        if time.monotonic() - began >= 0.1:  # the queue is full: this line waited its time, and was given up
            break
    else:
        pytest.fail("the queue had no bound")


def test_who_is_out_of_descriptors_says_that_it_lives(systemd: socket.socket) -> None:
    notify = Notify({"NOTIFY_SOCKET": systemd.getsockname()})
    notify("STATUS=starting")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
        notify("WATCHDOG=1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert heard(systemd) == ["STATUS=starting", "WATCHDOG=1"]


@pytest.mark.parametrize("watchdog", ["", "20000"])
async def test_what_found_no_room_is_said_again_as_soon_as_there_is(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch, watchdog: str
) -> None:
    """systemd ends a service without READY=1 as one that does not start."""
    monkeypatch.setattr("muster_server.control.host.notify.AGAIN_S", 0.02)
    notify = Notify({"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": watchdog})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others, contextlib.suppress(BlockingIOError):
        others.setblocking(False)
        while True:
            others.sendto(b"STATUS=other", systemd.getsockname())
    notify.status("serving", "READY=1")
    notify.status("draining")
    assert set(heard(systemd)) == {"STATUS=other"}
    beating = asyncio.create_task(notify.beat())
    lines = list[str]()

    def again() -> bool:
        lines.extend(line for said in heard(systemd) for line in said.splitlines())
        return "READY=1" in lines

    await until(again)
    assert lines[:2] == ["READY=1", "STATUS=draining"], "the last of each"
    beating.cancel()


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "10000000"}, 10.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}, 10.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "ten"}, 0.0),
    ],
)
def test_the_watchdog_is_this_process_s_or_none(environment: dict[str, str], seconds: float) -> None:
    assert Notify(environment).watchdog_s == seconds


async def test_a_loop_that_stands_still_is_not_said_to_turn(systemd: socket.socket) -> None:
    notify = Notify({"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "20000"})
    beating = asyncio.create_task(notify.beat())
    await until(lambda: "WATCHDOG=1" in heard(systemd))
    heard(systemd)
    time.sleep(0.1)  # noqa: ASYNC251 - the loop is to stand still, for five watchdogs
    assert heard(systemd) == []
    await until(lambda: "WATCHDOG=1" in heard(systemd))
    beating.cancel()


async def test_without_a_watchdog_nothing_beats(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_server.control.host.notify.AGAIN_S", 0.001)
    await Notify({"WATCHDOG_USEC": "20000"}).beat()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Notify({"NOTIFY_SOCKET": systemd.getsockname()}).beat(), 0.05)
    assert heard(systemd) == []
