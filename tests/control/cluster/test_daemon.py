"""The signals of a node without a supervisor, as systemd sees them: each reload ends, however it goes."""

import asyncio
import os
import signal

import pytest
import structlog
import uvloop
from structlog.testing import capture_logs

from control.cli import start
from control.cluster.daemon import Daemon
from control.errors import ConfigError
from control.host import hangup
from control.host.notify import Notify
from control.node.live import Live, Now
from tests.waiting import until

STAYS = "not reloaded, the old configuration stays"


class FakeNotify(Notify):
    """The lines to systemd."""

    def __init__(self) -> None:
        super().__init__({})
        self.lines: list[str] = []

    def __call__(self, *lines: str) -> None:
        self.lines += [line.partition("=")[0] for line in lines]


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
    daemon = Daemon(Live(structlog.get_logger(), "info"), again, systemd)

    async def work(owner: object) -> None:
        daemon.tell("ready")
        await end.wait()

    with capture_logs() as logged:
        running = asyncio.create_task(daemon.run(work))
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

    async def work(owner: object) -> None:
        """Ends at once."""

    before = signal.getsignal(signal.SIGHUP)
    try:
        hangup.hold()
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(2):
            uvloop.run(Daemon(Live(structlog.get_logger(), "info"), again, FakeNotify()).run(work))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert reloads == ["one"]


def test_a_sigterm_once_the_loop_turns_drains_and_ends_nobody_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["muster", "serve"])
    monkeypatch.setattr("control.cli.main.main", lambda: 0)
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    systemd = FakeNotify()

    async def work(owner: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

    try:
        assert start.main() == 0
        uvloop.run(Daemon(Live(structlog.get_logger(), "info"), lambda: Now("info"), systemd).run(work))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "STOPPING" in systemd.lines
