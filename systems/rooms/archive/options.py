"""The keys of the archive, the settings of its node, and the function that makes settings from keys."""

from typing import Annotated, Any, Final

import msgspec

from muster_server.plane.kind import Around
from muster_server.plane.options import FaceOptions, key

KEYS_MAX: Final = 10_000
SQLITE: Final = "sqlite"
NONE: Final = "none"


class ArchiveOptions(FaceOptions, frozen=True):
    """Keeps the messages of some rooms beyond memory. It joins them as a member, so no message waits for it. `bind` is for
    the HTTP face and commands, which prove the cluster's secret; the connections are not encrypted."""

    rooms: Annotated[
        str,
        key(
            "Rooms that are kept, separated by commas: names, prefixes followed by `*`, or `*`. A named"
            " room is kept from the start, another one as soon as it has a member",
            "empty: no archive runs",
        ),
    ] = ""
    database: Annotated[
        str,
        key(
            "Database of the archive: `sqlite`: the file `archive.db` in the folder of the instance, or of the node; "
            "`sqlite:///PATH`, `mysql://USER@HOST:PORT/NAME`, `postgresql://USER@HOST:PORT/NAME`",
            "empty: `database.url`, or `sqlite` without it",
        ),
    ] = ""
    database_password_file: Annotated[
        str, key("File with the password of the database's user, one line", "empty: `database.password_file`")
    ] = ""
    keep_days: Annotated[int, key("How long messages are kept", "a month", "days", ge=1, le=3_650)] = 30
    room_mib: Annotated[
        int,
        key(
            "Limit of one room's messages; beyond it the oldest are dropped and counted",
            "a busy room must not take the place of the others",
            "MiB",
            ge=1,
            le=1 << 20,
        ),
    ] = 256
    total_mib: Annotated[
        int,
        key(
            "Limit of the messages of all rooms; beyond it the oldest are dropped and counted",
            "a small disk",
            "MiB",
            ge=16,
            le=1 << 26,
        ),
    ] = 16_384
    rooms_max: Annotated[
        int,
        key(
            "Limit of rooms that are kept at the same time; further ones are counted and not kept",
            "a membership each, 256 for each session",
            "rooms",
            ge=1,
            le=10_000,
        ),
    ] = 1_000
    keys_max: Annotated[
        int,
        key(
            "Limit of the keys of one room whose latest message is kept; messages with further ones are counted, and are "
            "in the history alone",
            "a page of 10 MB with messages of 1 KB",
            "keys",
            ge=1,
            le=100_000,
        ),
    ] = KEYS_MAX
    look_ms: Annotated[
        int,
        key(
            "Interval at which gateways and edges are asked for their rooms, if a pattern ends with `*`",
            "a room that begins is found before its first messages leave the memory of its broker",
            "ms",
            ge=100,
            le=60_000,
        ),
    ] = 1_000
    idle_s: Annotated[
        int,
        key(
            "Time without a message or another member after which a room that a pattern found is left; it is joined again "
            "where it ended",
            "a membership keeps its room alive",
            "s",
            ge=10,
            le=86_400,
        ),
    ] = 600


def patterns(rooms: str) -> list[str]:
    """The patterns of `archive.rooms`."""
    return [each.strip() for each in rooms.split(",")] if rooms.strip() else []


class ArchiveSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a node."""

    folder: str
    """Folder of the instance or the node."""
    database: str
    database_password_file: str
    instance: str
    options: dict[str, Any]


def settle(options: ArchiveOptions, around: Around) -> ArchiveSettings:
    """Make the settings from the configuration."""
    shared: Any = around.section("database")
    url = options.database or shared.url
    password_file = options.database_password_file or ("" if options.database else shared.password_file)
    return ArchiveSettings(
        folder=str(around.folder),
        database=f"sqlite:///{around.folder / 'archive.db'}" if url in {"", NONE, SQLITE} else url,
        database_password_file=around.absolute(password_file),
        instance=around.instance,
        options=msgspec.to_builtins(options),
    )
