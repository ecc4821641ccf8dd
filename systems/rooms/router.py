"""The router: tells brokers which gateway wants which room.

Its options, its settings and its descriptor; the engine is made in `build.py`.
"""

from typing import Annotated, Final

import msgspec

from muster_server.plane.kind import Around, Pods, RoleKind
from muster_server.plane.options import MachineOptions, Section, key
from muster_server.systems.rooms.options import PAGES

SQLITE: Final = "sqlite"
"""The URL of a database in a file of the node's folder."""


class Database(Section, frozen=True):
    """Where routers store which gateway wants which room, so that a new router knows it before all gateways report.

    All databases but SQLite need the extra `database` of `muster-server`. No traffic waits for the database, and
    nothing else changes without it.
    """

    url: Annotated[
        str,
        key(
            "`sqlite`: the file `memberships.db` in the folder of the instance, or of the node; `sqlite:///PATH` (four "
            "slashes for an absolute path), `mysql://USER@HOST:PORT/NAME`, `postgresql://USER@HOST:PORT/NAME`; or `none`",
            "empty: none; gateways report their rooms anyway",
        ),
    ] = ""
    password_file: Annotated[
        str, key("File with the user's password, one line", "the configuration itself contains no secret")
    ] = ""


class Router(MachineOptions, frozen=True):
    """Tells brokers which gateway wants which room. `bind` is for links: no client connects to it."""

    memberships_max: Annotated[
        int,
        key(
            "Limit of memberships (a room counts once for each gateway that wants it); further ones are "
            "refused; memory is allocated at the start",
            "64 B each: 1 GiB; changes that wait for peers take up to 66 B more each",
            "memberships",
            ge=1,
            le=1 << 25,
        ),
    ] = 16 << 20


class DatabaseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The database of a router's memberships."""

    url: str
    password_file: str
    cluster: str
    """The name of the instance that owns the memberships."""
    partition: int


class RouterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a router."""

    options: Router
    database: DatabaseSettings | None = None


def settle(options: Router, around: Around) -> RouterSettings:
    """Make the settings from the configuration."""
    database: Database = around.section("database")
    kept = None
    if database.url:
        kept = DatabaseSettings(
            url=f"sqlite:///{around.folder / 'memberships.db'}" if database.url == SQLITE else database.url,
            password_file=around.absolute(database.password_file),
            cluster=around.instance,
            partition=around.partition,
        )
    return RouterSettings(options=options, database=kept)


ROUTER: Final = RoleKind(
    name="router",
    process="machine",
    numbers=range(1, 10_001, 4),
    about="tells brokers which gateway wants which room",
    options=Router,
    settings=RouterSettings,
    settle=settle,
    build="muster_server.systems.rooms.build:router",
    companion="muster_server.systems.rooms.database.keeper:companion",
    pages=PAGES,
    shape="partitioned",
    dials=("broker", "router"),
    secrets=frozenset({"cluster"}),
    plural="routers",
    count="1",
    count_why="partitions share the memberships, independently of the brokers'; replicas share the brokers",
    always=True,
    ends=40,
    row=20,
    # 256 MiB, and as much again for each broker or router that receives all at once: fits into `memory_max`.
    pods=Pods(port=7420, keys={"router.memberships_max": "4194304"}),
    received="muster_memberships_received_total",
    sent="muster_memberships_sent_total",
    carried="muster_memberships_received_total",
)
