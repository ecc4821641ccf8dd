"""The process of a role from its start to its end, around a fake engine."""

import asyncio
import functools
from typing import Any

import msgspec
import structlog

from muster_server.control.node.enrolment import Enrolment
from muster_server.control.node.process import serve
from muster_server.control.registry.directory import Directory
from muster_server.plane.role import Role
from muster_server.plane.server import Server
from muster_server.plane.spec import Spec
from muster_server.systems.rooms.database.keeper import Late, keeper
from muster_server.systems.rooms.router import DatabaseSettings
from tests.control.players import spec
from tests.fakes.engine import FakeEngine
from tests.fakes.memory import Memory
from tests.ports import free_ports
from tests.waiting import PATIENT_S

LOG = structlog.get_logger()


class Owner:
    """Ends the process as soon as it is ready."""

    def tell(self, state: str, **more: Any) -> None:
        if state in {"registered", "ready"}:
            self.end.set()

    def watch(self, end: asyncio.Event, *more: Any) -> None:
        self.end = end

    def current(self, spec: Spec) -> Spec:
        return spec


async def test_the_engine_is_let_go_of_before_what_waits_is_written() -> None:
    order: list[str] = []

    class Store(Late):
        async def close(self) -> None:
            order.append("written")

    class Enrolled(Enrolment):
        def detach(self) -> None:
            order.append("let go")
            super().detach()

    def none() -> Any:
        raise ValueError("there is no database")

    async with Directory(Memory().tree(), LOG, spread_s=0.01, hold_s=0.5) as directory:
        kept = DatabaseSettings(url="fake://db", password_file="", cluster="muster", partition=0)
        told = msgspec.structs.replace(spec(1, "router"), admin=("127.0.0.1", free_ports(1)[0]))
        enrolment = Enrolled(told, directory, LOG)
        begun = await enrolment.begin()
        server = Server(Role(FakeEngine(link_bind=("127.0.0.1", 0))), LOG)
        async with asyncio.timeout(PATIENT_S):
            begin = functools.partial(keeper, kept, Store("fake://db", none))
            await serve(begun, LOG, Owner(), enrolment, begin, server)
    assert order == ["let go", "written"]
