"""The router: tells brokers which gateway wants which room.

Its options, its settings and its descriptor; the engine is made in `build.py`.
"""

from typing import Annotated, Final

import msgspec

from plane.kind import Around, RoleKind
from plane.options import MachineOptions, Section, key
from plane.rooms.options import PAGES

SQLITE: Final = "sqlite"
"""A database in a file that needs no name."""


class Database(Section, frozen=True):
    """Where routers keep which gateway wants which room, so that a new router knows it before all gateways told it.

    All but SQLite need the extra `database` of `muster-server`. Nothing waits for it, and without it nothing else changes.
    """

    url: Annotated[
        str,
        key(
            "`sqlite`: the file `memberships.db` in the folder of the instance, or of the node; `sqlite:///PATH` (a second "
            "slash before an absolute one), `mysql://USER@HOST:PORT/NAME`, `postgresql://USER@HOST:PORT/NAME`; or `none`",
            "empty: none; gateways tell their rooms anyhow",
        ),
    ] = ""
    password_file: Annotated[
        str, key("File with the password of that user, one line", "no secret is in a list of keys")
    ] = ""


class Router(MachineOptions, frozen=True):
    """Tells brokers which gateway wants which room. `bind` is for links: no client speaks to it."""

    memberships_max: Annotated[
        int,
        key(
            "Memberships (rooms wanted, once per gateway) that it holds; more are refused; taken at start",
            "64 B each: 1 GiB; what peers are not told yet takes up to 66 B each besides",
            "memberships",
            ge=1,
            le=1 << 25,
        ),
    ] = 16 << 20


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The database of a router's memberships."""

    url: str
    password_file: str
    cluster: str
    """The instance whose memberships they are."""
    partition: int


class RouterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a router is told."""

    memberships_max: int
    database: Kept | None = None


def settle(options: Router, around: Around) -> RouterSettings:
    """Out of the configuration."""
    database: Database = around.section("database")
    kept = None
    if database.url:
        kept = Kept(
            url=f"sqlite:///{around.folder / 'memberships.db'}" if database.url == SQLITE else database.url,
            password_file=around.absolute(database.password_file),
            cluster=around.instance,
            partition=around.partition,
        )
    return RouterSettings(memberships_max=options.memberships_max, database=kept)


ROUTER: Final = RoleKind(
    name="router",
    process="machine",
    numbers=range(1, 10_001, 4),
    about="tells brokers which gateway wants which room",
    options=Router,
    settings=RouterSettings,
    settle=settle,
    build="plane.rooms.build:router",
    companion="control.rooms.database.keeper:companion",
    pages=PAGES,
    shape="partitioned",
    dials=("broker", "router"),
    secrets=frozenset({"cluster"}),
    plural="routers",
    count="1",
    count_why="partitions divide the memberships, whatever those of the brokers; replicas, the gateways that are served",
    always=True,
    ends=40,
    row=20,
    received="muster_memberships_received_total",
    sent="muster_memberships_sent_total",
    carried="muster_memberships_received_total",
)
