"""Judges which peer servers are installed: tests and `muster bench peers` run them; Muster itself needs none."""

from collections.abc import Callable
from typing import Final, NamedTuple

from muster_server.control.doctor.finding import Finding, ok


class Program(NamedTuple):
    """A server: its executables, one of which is enough, and its Debian package."""

    name: str
    executables: tuple[str, ...]
    package: str


PROGRAMS: Final = (
    Program("Redis", ("redis-server",), "redis-server"),
    Program("NATS", ("nats-server",), "nats-server"),
    Program("Mosquitto", ("mosquitto",), "mosquitto"),
    Program("Java", ("java",), "default-jre-headless"),
    Program("ZooKeeper", (".tools/zookeeper/zookeeper-3.*.jar", "/usr/share/java/zookeeper.jar"), "libzookeeper-java"),
    Program("MariaDB", ("mariadbd", "mysqld"), "mariadb-server"),
    Program("PostgreSQL", ("postgres", "/usr/lib/postgresql/*/bin/postgres"), "postgresql"),
)


def judged(find: Callable[[str], str | None]) -> list[Finding]:
    """`find` returns the path of an executable, or of a file by its pattern."""
    found: list[Finding] = []
    for program in PROGRAMS:
        where = next((path for path in map(find, program.executables) if path is not None), None)
        if where is not None:
            found.append(ok(program.name, where))
        else:
            text = "not installed; Muster runs without it, but tests and comparisons with it are skipped"
            found.append(ok(program.name, text, f"apt-get install --no-install-recommends {program.package}"))
    return found
