"""A real Kafka broker as a child process on loopback, killed, stopped and started again by tests.

One serves the whole run (`tests/conftest.py`). Each test has topics of its own there.
"""

import asyncio
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests import strikes
from tests.ports import free_ports
from tests.waiting import PATIENT_S

JARS: Final = Path(__file__).parents[1] / ".tools" / "kafka"
MEND: Final = "needs a Java runtime and Kafka's jars; to get them: scripts/setup.sh --tests"
JAVA: Final = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
CLUSTER: Final = "MkU3OEVBNTcwNTJENDM2Qk"
_PREFIXES: Final = itertools.count(1)
LOGGING: Final = """\
status = error
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = STDOUT
"""
# The last two: a broker that was killed is back when its old session is over, 9 s by default.
PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=2
num.recovery.threads.per.data.dir=1
log.cleaner.dedupe.buffer.size=16777216
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
"""


def need() -> None:
    """Skips if something is missing, and fails if nothing may be."""
    if any(JARS.glob("kafka_2.13-*.jar")) and shutil.which("java"):
        return
    if os.environ.get("CI") == "true":
        pytest.fail(MEND)
    pytest.skip(MEND)


class Kafka:
    """One broker that is its own controller, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, controller = free_ports(2)
        self.prefix = ""
        """Of the topics of a test."""
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "log4j2.properties").write_text(LOGGING)
        self._properties = folder / "server.properties"
        self._properties.write_text(PROPERTIES.format(port=self.port, controller=controller, data=folder / "data"))

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """As the configuration names it."""
        return f"kafka://{self.servers}/{self.prefix}"

    @property
    def pid(self) -> int:
        """0 where it was not started."""
        return self._process.pid if self._process is not None else 0

    def _java(self, *words: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return ["setpriv", "--pdeathsig=KILL", "java", *JAVA, logging, "-cp", f"{JARS}/*", *words]

    def start(self) -> None:
        """With the earlier content, unless it runs. Only in the main thread: it ends with its thread."""
        need()
        if self._process is not None and self._process.poll() is None:
            return
        with (self.folder / "log").open("ab") as log:
            if not (self.folder / "data").exists():
                form = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._properties)]
                subprocess.run(
                    self._java(*form), check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=PATIENT_S
                )
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def ready(self) -> None:
        """Wait until it answers."""
        await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        asking = AdminClient({"bootstrap.servers": self.servers, "log_level": 0, "reconnect.backoff.max.ms": 200})
        deadline = time.monotonic() + PATIENT_S
        while True:
            try:
                if asking.list_topics(timeout=1.0).brokers:
                    return
            except KafkaException:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2_000:]

    async def serve_another_test(self) -> None:
        """Serve, with topics that no test has used."""
        self.prefix = f"test-{next(_PREFIXES)}"
        self.start()
        await self.ready()

    def kill(self) -> None:
        """kill -9."""
        strikes.kill(self.pid)
        self.end()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """SIGSTOP while the block lasts."""
        with strikes.standing_still(self.pid):
            yield

    def end(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
