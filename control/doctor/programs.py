"""Judges which servers of others are here: tests and `muster bench peers` run them, Muster itself needs none."""

from collections.abc import Callable
from typing import Final, NamedTuple

from control.doctor.finding import Finding, ok


class Program(NamedTuple):
    """A server by its executables, any of which will do, and the package of Debian that has it."""

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
    """`find`: where an executable, or a file by its pattern, lies."""
    found: list[Finding] = []
    for program in PROGRAMS:
        where = next((path for path in map(find, program.executables) if path is not None), None)
        if where is not None:
            found.append(ok(program.name, where))
        else:
            text = "not installed; Muster runs without it, and skips tests and comparisons with it"
            found.append(ok(program.name, text, f"apt-get install --no-install-recommends {program.package}"))
    return found
