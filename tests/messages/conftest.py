"""Every kind of schedule, for the suite that all of them pass: in a folder and in Redis, each with and without a log."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import structlog

from muster_server.plane.log.embedded import EmbeddedLogs
from muster_server.systems.messages.logged import LoggedSchedule
from muster_server.systems.messages.redis import RedisSchedule, connect
from muster_server.systems.messages.schedule import EmbeddedSchedule, Schedule
from muster_server.systems.messages.shapes import Fire
from tests.redis_server import RedisServer

HOUR_MS: Final = 3_600_000
_PREFIXES: Final = itertools.count(1)
SEGMENT_BYTES: Final = 8 << 20


class Made:
    """Schedules of one place, one after another, as processes would have them."""

    def __init__(self, kind: str, folder: Path, redis: RedisServer | None) -> None:
        self.kind, self.folder, self.redis = kind, folder, redis
        self.prefix = f"test-{next(_PREFIXES)}"
        self.fires: list[tuple[int, Fire]] = []
        self.records_min = 20_000
        self._open: list[Schedule] = []

    def new(self, **more: Any) -> Schedule:
        """A schedule that is not open yet."""
        log = structlog.get_logger()
        settings = {"history_ms": HOUR_MS, "ahead_ms": HOUR_MS, "dead_days": 30} | more
        schedule: Schedule
        if self.redis is not None:
            place = connect(self.redis.url, "")
            schedule = redis = RedisSchedule(
                place, self.prefix, self.fired, log, lasting="logged" in self.kind, **settings
            )
        else:
            folder = self.folder / "schedule"
            schedule = EmbeddedSchedule(folder, self.fired, segment_bytes=SEGMENT_BYTES, **settings)
        if "logged" in self.kind:
            logs = EmbeddedLogs(self.folder / "log", segment_bytes=SEGMENT_BYTES)
            logged = LoggedSchedule(
                schedule, logs, "messages", log, ahead_ms=settings["ahead_ms"], records_min=self.records_min
            )
            if self.redis is not None:
                redis.on_back = logged.came_back
            schedule = logged
        return schedule

    async def open(self, **more: Any) -> Schedule:
        schedule = self.new(**more)
        await schedule.open()
        self._open.append(schedule)
        return schedule

    async def close(self, schedule: Schedule) -> None:
        self._open.remove(schedule)
        await schedule.close()

    def fired(self, worker: int, fires: bytes) -> None:
        self.fires += [(worker, each) for each in msgspec.msgpack.decode(fires, type=list[Fire])]

    def taken(self) -> list[tuple[int, Fire]]:
        """Fires since the last call."""
        fires, self.fires = self.fires, []
        return fires

    async def end(self) -> None:
        for schedule in self._open:
            await schedule.close()


@pytest.fixture(scope="session")
def redis_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A running one, that no test kills."""
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    made.start()
    yield made
    made.end()


@pytest.fixture(params=["embedded", "redis", "embedded, logged", "redis, logged"])
async def made(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Made]:
    redis = request.getfixturevalue("redis_of_the_run") if "redis" in request.param else None
    place = Made(request.param, tmp_path, redis)
    yield place
    await place.end()


@pytest.fixture
async def own_redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """A running one that this test may kill."""
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.end()
