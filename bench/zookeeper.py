"""A real ZooKeeper for a bench, from the jars that the tests use. It keeps nothing on a disk that it waits for."""

import shutil
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.child import Child, free_port, listens, private_directory
from bench.peers import Missing

JARS: Final = Path(__file__).parents[1] / ".tools" / "zookeeper"
DEBIAN: Final = Path("/usr/share/java/zookeeper.jar")
MEND: Final = "ZooKeeper is not there: it needs a Java runtime and its jars; to get them: scripts/setup.sh --tests"
START_S: Final = 60.0


class ZooKeeper:
    """One server, while the block lasts."""

    def __init__(self, core: int) -> None:
        """Raises `Missing`."""
        if any(JARS.glob("zookeeper-*.jar")):
            self._classes = f"{JARS}/*"
        elif DEBIAN.exists():
            self._classes = f"{DEBIAN}:{DEBIAN.with_name('slf4j-nop.jar')}"
        else:
            raise Missing(MEND)
        if not shutil.which("java"):
            raise Missing(MEND)
        self._folder, self._core, self.port = private_directory("zookeeper"), core, free_port()
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """As the configuration names it."""
        return f"zk://127.0.0.1:{self.port}/bench"

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._child is not None
        return self._child.pid

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        lines = [
            "tickTime=2000",
            "maxClientCnxns=0",
            "minSessionTimeout=2000",
            "maxSessionTimeout=60000",
            "admin.enableServer=false",
            "clientPortAddress=127.0.0.1",
            f"clientPort={self.port}",
            f"dataDir={folder / 'data'}",
        ]
        (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
        argv = [
            "java",
            *("-Xms256m", "-Xmx1g", "-XX:+UseSerialGC", "-Dzookeeper.forceSync=no", "-Djava.net.preferIPv4Stack=true"),
            *("-cp", self._classes, "org.apache.zookeeper.server.ZooKeeperServerMain", str(folder / "zoo.cfg")),
        ]
        self._child = Child("zookeeper", argv, core=self._core, directory=folder)
        self._child.wait_until(lambda: listens(self.port), seconds=START_S)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._child is not None:
            self._child.stop()
        self._folder.cleanup()
