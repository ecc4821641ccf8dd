"""Both logs, for the suite that both pass."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from muster_server.plane.log import Log, Logs, connect
from muster_server.plane.log.embedded import EmbeddedLogs
from tests.kafka import Kafka

SEGMENT_BYTES: Final = 8 << 20


class Place:
    """Where a test's log is. Each `logs()` is as another process would have it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self._logs: list[Logs] = []
        self._open: list[Log] = []

    def logs(self) -> Logs:
        made = connect(self.url, self.folder, partitions=2)
        if not self.url:
            made = EmbeddedLogs(self.folder, segment_bytes=SEGMENT_BYTES)
        self._logs.append(made)
        return made

    async def open(self, epoch: int | None = None, partition: int = 0) -> Log:
        """By another process."""
        log = await self.logs().open("likes", partition, epoch)
        self._open.append(log)
        return log

    async def close(self, log: Log) -> None:
        self._open.remove(log)
        await log.close()

    async def end(self) -> None:
        for log in self._open:
            await log.close()
        for logs in self._logs:
            await logs.close()


@pytest.fixture(params=["embedded", "kafka"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    url = ""
    if request.param == "kafka":
        kafka: Kafka = request.getfixturevalue("kafka_of_the_run")
        await kafka.serve_another_test()
        url = kafka.url
    made = Place(url, tmp_path)
    yield made
    await made.end()
