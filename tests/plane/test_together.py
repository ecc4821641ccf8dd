"""The turns of machines that share a process: mail is taken at once, and the loop's other work has its time."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from muster_server._engines import Mailboxes, RouterEngine
from muster_server.plane.role import Role
from muster_server.plane.server import Server
from muster_server.plane.together import ROUNDS_MAX, Together
from tests.fakes.engine import FakeEngine
from tests.waiting import until

LOG = structlog.get_logger()
ENGINES_MAX = 64


class Boxes:
    """In place of `Mailboxes`: bits that tests set."""

    def __init__(self) -> None:
        self.waiting = self.readable = self.lingers_us = self.rounds = 0
        self.later: list[int] = []
        """The engines whose datagrams come while a round lingers."""
        self._entered = 0
        self._event = os.eventfd(0, os.EFD_NONBLOCK)

    def enter(self) -> int:
        self._entered += 1
        return self._entered - 1

    def wake(self, bits: int) -> None:
        """These engines' descriptors are readable."""
        self.readable |= bits
        os.eventfd_write(self._event, 1)

    def fd(self) -> int:
        return self._event

    def mail(self) -> int:
        return self.waiting

    def linger(self, us: int) -> None:
        self.lingers_us = us

    def begin(self) -> int:
        if self.readable:
            os.eventfd_read(self._event)
        found, self.readable = self.readable, 0
        return found

    def wait(self) -> int:
        return self.later.pop() if self.later else 0

    def end(self) -> None:
        self.rounds += 1

    def leave(self, number: int) -> None:
        self.waiting &= ~(1 << number)

    def close(self) -> None:
        os.close(self._event)


class Machine(FakeEngine):
    """A machine that takes its mail and sends some, as `sends` says."""

    def __init__(self, name: str, turned: list[str], sends: Callable[[], int] = lambda: 0) -> None:
        super().__init__(link_bind=("127.0.0.1", 0))
        self.name, self.turned, self.sends = name, turned, sends
        self.boxes = Boxes()
        self.number = 0

    def join(self, mailboxes: Mailboxes) -> int:
        assert isinstance(mailboxes, Boxes)
        self.boxes, self.number = mailboxes, mailboxes.enter()
        return self.number

    def turn(self) -> int:
        self.turned.append(self.name)
        self.boxes.waiting &= ~(1 << self.number)
        self.boxes.waiting |= self.sends()
        return super().turn()


class Process:
    """Machines that share a process, while the context is open."""

    def __init__(self, *machines: FakeEngine) -> None:
        self.together = Together()
        self.servers = [Server(Role(machine), LOG) for machine in machines]
        self._stop = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Process":
        for server in self.servers:
            server.others = self.together
            self._running.append(asyncio.create_task(server.run(self._stop, 1.0)))
        await until(lambda: all(server.ready for server in self.servers))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._running)


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> Boxes:
    made = Boxes()
    monkeypatch.setattr("muster_server.plane.together.Mailboxes", lambda: made)
    return made


async def test_what_goes_from_machine_to_machine_arrives_before_the_loop_does_anything_else(boxes: Boxes) -> None:
    turned: list[str] = []
    sends = {"proxy": 0, "broker": 0}
    machines = [
        Machine("proxy", turned, lambda: sends["proxy"]),
        Machine("broker", turned, lambda: sends["broker"]),
        Machine("gateway", turned),
    ]
    async with Process(*machines):
        sends.update(proxy=1 << 1, broker=1 << 2)
        turned.clear()
        boxes.wake(1 << 0)
        asyncio.get_running_loop().call_soon(turned.append, "other work")
        await until(lambda: "gateway" in turned)
    assert turned[turned.index("proxy") :][:3] == ["proxy", "broker", "gateway"]


async def test_mail_without_end_leaves_the_loop_its_other_work(boxes: Boxes) -> None:
    turned: list[str] = []
    sends = {"one": 0, "two": 0}
    machines = [Machine("one", turned, lambda: sends["one"]), Machine("two", turned, lambda: sends["two"])]
    async with Process(*machines):
        sends.update(one=1 << 1, two=1 << 0)
        turned.clear()
        boxes.wake(1 << 0)
        await until(lambda: bool(turned))
        for _ in range(10):
            before = len(turned)
            await asyncio.sleep(0)
            assert len(turned) - before <= 2 * ROUNDS_MAX
        assert len(turned) > 10 * ROUNDS_MAX / 2, "it goes on by itself"
        sends.update(one=0, two=0)


async def test_a_machine_with_more_work_waits_behind_the_loop_and_the_others_go_on(boxes: Boxes) -> None:
    turned: list[str] = []
    machines = [Machine("busy", turned), Machine("other", turned)]
    async with Process(*machines):
        machines[0].more = 1 << 30
        boxes.wake(1 << 0)
        await until(lambda: turned.count("busy") > 10)
        boxes.waiting |= 0b11
        boxes.wake(1 << 1)
        turned.clear()
        for _ in range(4):
            await asyncio.sleep(0)
        assert "other" in turned
        assert 0 < turned.count("busy") <= 8, "the loop's other work has its time"
        assert not boxes.waiting
        machines[0].more = 0


async def test_a_round_lingers_for_what_comes_next_unless_turns_wait(boxes: Boxes) -> None:
    turned: list[str] = []
    machines = [Machine("one", turned), Machine("two", turned)]
    async with Process(*machines) as process:
        process.servers[1].linger(700)
        assert boxes.lingers_us == 700, "one for all machines of the process"
        turned.clear()
        before, boxes.later = boxes.rounds, [1 << 0, 1 << 1]
        boxes.wake(1 << 0)
        await until(lambda: boxes.rounds > before)
        assert turned == ["one", "two", "one"], "in one pass of the loop"
        machines[0].more, boxes.later = 2, [1 << 1]
        boxes.wake(1 << 0)
        await until(lambda: boxes.rounds > before + 1)
        assert boxes.later, "it does not keep the loop from a machine with more work"


async def test_a_machine_without_a_place_keeps_to_its_own_descriptor() -> None:
    engine = FakeEngine(link_bind=("127.0.0.1", 0))
    async with Process(engine) as process:
        assert process.servers[0].others is None
        engine.link.sendto(b"not_ready busy", engine.addresses()[-1])
        await until(lambda: not process.servers[0].ready)


def router() -> RouterEngine:
    links: Any = {
        "node": 1,
        "epoch": 1,
        "link_bind": ("127.0.0.1", 0),
        "cluster_key": (1, secrets.token_bytes(32)),
        "seed": 1,
        "recv_buffer": 1 << 16,
        "send_buffer": 1 << 16,
        "payload_bytes": 1_200,
    }
    return RouterEngine(links, b"{}")


def lingered(engine: RouterEngine) -> int:
    return next(value for name, _, value in engine.counters() if name == "turns_lingered")


def test_rounds_that_follow_each_other_closely_linger_and_their_turns_are_counted() -> None:
    shared, engine = Mailboxes(), router()
    number = engine.join(shared)

    def came(us: int) -> bool:
        """Whether two rounds in a row that may linger so long see a datagram that comes after the second has begun."""
        shared.linger(us)
        shared.begin()
        engine.turn()
        shared.end()
        shared.begin()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as friend:
            friend.sendto(b"news", engine.addresses()[0])
        found = shared.wait()
        engine.turn()
        shared.end()
        return found == 1 << number

    assert not came(0)
    assert lingered(engine) == 0
    assert any(came(20_000) for _ in range(100)), "on a busy machine two rounds may be too far apart"
    assert lingered(engine) > 0
    shared.leave(number)
    engine.close()


def test_the_number_of_an_engine_that_has_left_is_another_ones() -> None:
    shared = Mailboxes()
    first, *rest = [router() for _ in range(ENGINES_MAX + 1)]
    assert first.join(shared) == 0
    assert [engine.join(shared) for engine in rest[:-1]] == list(range(1, ENGINES_MAX))
    with pytest.raises(OverflowError, match="64 engines are the most in one process"):
        rest[-1].join(shared)
    shared.leave(0)
    first.close()
    assert rest[-1].join(shared) == 0
    assert shared.begin() == (1 << ENGINES_MAX) - 1, "the first turn of each is due"
    shared.end()
    for engine in rest:
        engine.close()
