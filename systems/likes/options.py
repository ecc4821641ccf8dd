"""The keys of likes, and the settings of a node.

Owns shapes and their defaults. Knows neither files nor sockets.
"""

import contextlib
from pathlib import Path
from typing import Annotated, Final

import msgspec

from muster_server.plane.kind import Around
from muster_server.plane.log.place import URL
from muster_server.plane.options import FaceOptions, key
from muster_server.systems.likes.slots import PARTITIONS_MAX

SQLITE = "sqlite"
"""The URL of a database in files of the node's folder, one for each partition."""
SEVERAL: Final = 16
"""Default number of partitions with several nodes."""
KEPT: Final = "partitions"
"""Name of the file in the folder of the logs with the number of partitions, if that is not 1, and the folder's
identity."""


class LikesOptions(FaceOptions, frozen=True):
    """Likes, counts and rankings, for any Redis client. `bind` is the address for clients."""

    folder: Annotated[
        str,
        key(
            "Folder of the log, on a disk whose synced data survive a crash",
            "empty: `likes` in the folder of the instance, or of the node; an instance's folder may be in memory",
        ),
    ] = ""
    advertise: Annotated[
        str,
        key(
            "Host of a node's ports that clients of a cluster get in `CLUSTER SLOTS` and `MOVED`",
            "empty: that of `bind`; for 0.0.0.0 the address by which other machines reach this one",
            pattern=r"^[A-Za-z0-9:._-]{0,255}$",
        ),
    ] = ""
    log: Annotated[
        str,
        key(
            "URL of the log in Kafka, `kafka://HOST:PORT,HOST:PORT/PREFIX`: a node on any machine can continue it",
            "empty: the log is in `folder`",
            pattern=rf"^(|{URL})$",
        ),
    ] = ""
    partitions: Annotated[
        int,
        key(
            "Partitions over which nodes share the items; cannot be changed later; more than 1: clients see a "
            "Redis Cluster",
            "0: the number of this folder; for a new one 16 if `up.likes` is above 1, else 1",
            ge=0,
            le=PARTITIONS_MAX,
        ),
    ] = 0
    lease_ms: Annotated[
        int,
        key(
            "Silence after which other nodes take over a node's partitions",
            "shorter than 5 s, longer than a short stall of the machine",
            "ms",
            ge=500,
            le=60_000,
        ),
    ] = 2_500
    segment_mib: Annotated[
        int,
        key(
            "Size of one file of the log; the log takes one more than its records need, and two spares", "", "MiB", ge=8
        ),
    ] = 64
    items_by_user: Annotated[
        bool, key("Store the items that each user likes, for `muster likes of`", "12 bytes per like, 12 per user")
    ] = True
    one_of: Annotated[
        str,
        key(
            "Kinds of which a user may like one for each id: a like of one takes the others back; groups are separated by "
            "`;`, for example `like,dislike;up,down`",
            "empty: a user may like items of all kinds",
            pattern=r"^(|[A-Za-z0-9_.-]{1,64}(,[A-Za-z0-9_.-]{1,64}){1,15}(;[A-Za-z0-9_.-]{1,64}(,[A-Za-z0-9_.-]{1,64}){1,15}){0,63})$",
        ),
    ] = ""
    database: Annotated[
        str,
        key(
            "Database behind the log, from which a node starts: `sqlite`: the file `likes.db` beside the log; "
            "`sqlite:///PATH`, `mysql://USER@HOST:PORT/NAME`, `postgresql://USER@HOST:PORT/NAME`",
            "empty: `database.url`, or `sqlite` without it",
        ),
    ] = ""
    database_password_file: Annotated[
        str, key("File with the password of the database's user, one line", "empty: `database.password_file`")
    ] = ""
    write_behind_ms: Annotated[
        int,
        key("Interval of writes to the database", "the log makes likes durable at once", "ms", ge=100, le=3_600_000),
    ] = 30_000
    snapshot_records: Annotated[
        int,
        key(
            "Records of the log after which a pass also writes a snapshot, from which a node starts",
            "a start applies about two million records per second",
            ge=1,
            le=1 << 32,
        ),
    ] = 1_000_000
    redis: Annotated[
        str,
        key(
            "URL of a Redis that gets counts and rankings each second, for web servers: `redis://USER@HOST:PORT/DB`",
            "empty: none",
        ),
    ] = ""
    redis_password_file: Annotated[str, key("File with the password of the user of that Redis, one line", "")] = ""
    redis_prefix: Annotated[
        str,
        key(
            "Prefix of the keys there: `PREFIXcount:ITEM`, and `PREFIXrank`, `PREFIXrank:FIELD`",
            "separates them from all other keys",
            pattern=r"^[A-Za-z0-9:_.-]{0,64}$",
        ),
    ] = "likes:"
    users_file: Annotated[
        str,
        key(
            "File with users and passwords, one `USER:PASSWORD` per line; clients need one of them",
            "empty: every client that reaches the port is accepted",
        ),
    ] = ""
    tls_cert_file: Annotated[
        str, key("File with the certificate (PEM); if set, clients must use TLS", "empty: no TLS")
    ] = ""
    tls_key_file: Annotated[str, key("File with the key of the certificate (PEM)", "")] = ""
    connections_max: Annotated[
        int,
        key("Limit of clients; further ones are refused as Redis does", "up to 2 MiB each", ge=1, le=1 << 20),
    ] = 10_000
    live_rate: Annotated[
        int,
        key(
            "Limit of one item's counts per second in its room `likes:ITEM`",
            "people notice no more; 0: no counts in rooms",
            "1/s",
            ge=0,
            le=10,
        ),
    ] = 10
    live_rate_all: Annotated[
        int,
        key(
            "Limit of all items' counts per second; the newest count of each waits",
            "a share of one proxy's capacity",
            "1/s",
            ge=1,
            le=100_000,
        ),
    ] = 2_000


class LikesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a node of likes. Paths are absolute; empty ones are not used."""

    options: LikesOptions
    folder: str
    """Folder of the log."""
    instance_folder: str
    """Folder of the instance, if there is no registry."""
    instance: str
    """The instance's name in the rows of the database."""
    partitions: int = 1
    database: str
    """URL of the database; `{partition}` stands for a partition's number."""
    database_password_file: str
    redis_password_file: str
    users_file: str
    tls_cert_file: str
    tls_key_file: str


def settle(options: LikesOptions, around: Around) -> LikesSettings:
    """Make the settings from the configuration."""
    shared, absolute = around.section("database"), around.absolute
    folder = absolute(options.folder) or str(around.folder / "likes")
    url = options.database or shared.url or SQLITE
    partitions = options.partitions or kept(Path(folder)) or (SEVERAL if around.section("up").likes > 1 else 1)
    file = "likes.db" if partitions == 1 else "likes-{partition}.db"
    password_file = options.database_password_file or ("" if options.database else shared.password_file)
    return LikesSettings(
        options=options,
        folder=folder,
        instance_folder=str(around.folder),
        instance=around.instance,
        partitions=partitions,
        database=f"sqlite:///{folder}/{file}" if url == SQLITE else url,
        database_password_file=absolute(password_file),
        redis_password_file=absolute(options.redis_password_file),
        users_file=absolute(options.users_file),
        tls_cert_file=absolute(options.tls_cert_file),
        tls_key_file=absolute(options.tls_key_file),
    )


def groups(one_of: str) -> list[list[str]]:
    """The groups of kinds that exclude one another."""
    return [group.split(",") for group in one_of.split(";") if group]


def kept(folder: Path) -> int | None:
    """The number of partitions of the logs in a folder; None if there are none. Where the file is lost or damaged, the
    folders of the logs say it."""
    try:
        number, _ = (folder / KEPT).read_text(encoding="ascii").split()
        return int(number)
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            return max((int(each.name) + 1 for each in folder.iterdir() if each.name.isdecimal()), default=None)
        return None
