"""The signals of a node without a supervisor, as systemd sees them: each reload ends, however it goes."""

import asyncio
import os
import signal

import pytest
import structlog
import uvloop
from structlog.testing import capture_logs

from muster_server.control.cluster.daemon import Daemon, Hosted, Work
from muster_server.control.errors import ConfigError
from muster_server.control.host import hangup
from muster_server.control.host.notify import Notify
from muster_server.control.node.live import Again, Live, Now
from muster_server.control.node.process import Owner
from muster_server.systems import start
from tests.waiting import until

STAYS = "not reloaded, the old configuration stays"


class FakeNotify(Notify):
    """The lines to systemd."""

    def __init__(self) -> None:
        super().__init__({})
        self.lines: list[str] = []

    def __call__(self, *lines: str) -> None:
        self.lines += [line.partition("=")[0] for line in lines]


def hosted(work: Work, again: Again = lambda: Now("info")) -> Hosted:
    return Hosted(Live(structlog.get_logger(), "info"), again, work)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("log.level = 'loud'"), "log.level = 'loud'"),
        (PermissionError(13, "Permission denied", "/etc/muster/node.key"), "/etc/muster/node.key: Permission denied"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (ValueError("embedded null byte"), "ValueError: embedded null byte"),
        (MemoryError(), "MemoryError: "),
    ],
)
async def test_a_reload_that_fails_however_is_one_line_and_systemd_hears_its_end(error: Exception, line: str) -> None:
    def again() -> Now:
        raise error

    systemd, end = FakeNotify(), asyncio.Event()

    async def work(owner: Owner) -> None:
        owner.tell("ready")
        await end.wait()

    with capture_logs() as logged:
        running = asyncio.create_task(Daemon([hosted(work, again)], systemd).run())
        await until(lambda: "READY" in systemd.lines)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: logged)
        end.set()
        await running
    assert [(entry["event"], entry["error"]) for entry in logged] == [(STAYS, line)]
    assert [name for name in systemd.lines if name in {"READY", "RELOADING"}] == ["READY", "RELOADING", "READY"]


def test_a_sighup_that_came_before_the_loop_is_a_reload_once_that_turns() -> None:
    reloads: list[str] = []

    def again() -> Now:
        reloads.append("one")
        return Now("info")

    async def work(owner: Owner) -> None:
        """Ends at once."""

    before = signal.getsignal(signal.SIGHUP)
    try:
        hangup.hold()
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(2):
            uvloop.run(Daemon([hosted(work, again)], FakeNotify()).run())
    finally:
        signal.signal(signal.SIGHUP, before)
    assert reloads == ["one"]


def test_a_sigterm_once_the_loop_turns_drains_and_ends_nobody_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["muster", "serve"])
    monkeypatch.setattr("muster_server.control.cli.main.main", lambda: 0)
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    systemd = FakeNotify()

    async def work(owner: Owner) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

    try:
        assert start.main() == 0
        uvloop.run(Daemon([hosted(work)], systemd).run())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "STOPPING" in systemd.lines


class Node:
    """A node that serves until its end."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.error: Exception | None = None
        """The error that ends it; None: it ends in order."""
        self.owner: Owner | None = None

    async def work(self, owner: Owner) -> None:
        self.owner = owner
        owner.watch(self.end, asyncio.Event(), lambda live: None)
        await self.end.wait()
        if self.error is not None:
            raise self.error

    def tell(self, state: str) -> None:
        assert self.owner is not None
        self.owner.tell(state)


async def test_nodes_of_one_process_are_ready_together_and_one_that_ends_takes_the_others_along() -> None:
    nodes, systemd = [Node(), Node()], FakeNotify()
    running = asyncio.create_task(Daemon([hosted(node.work) for node in nodes], systemd).run())
    await until(lambda: all(node.owner for node in nodes))
    nodes[0].tell("ready")
    assert "READY" not in systemd.lines
    nodes[1].tell("ready")
    assert "READY" in systemd.lines
    assert not nodes[0].end.is_set()
    nodes[1].error = ConfigError("its name is taken")
    nodes[1].end.set()
    with pytest.raises(ConfigError, match="its name is taken"):
        await running
    assert nodes[0].end.is_set()
    assert "STOPPING" in systemd.lines


async def test_a_signal_drains_all_nodes_of_the_process() -> None:
    nodes = [Node(), Node()]
    running = asyncio.create_task(Daemon([hosted(node.work) for node in nodes], FakeNotify()).run())
    await until(lambda: all(node.owner for node in nodes))
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert all(node.end.is_set() for node in nodes)
