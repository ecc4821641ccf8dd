"""The keys of likes, and what a node of them is told.

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
"""The database that needs no URL: a file in the node's folder, one for each partition."""
SEVERAL: Final = 16
"""Partitions where several nodes run and no number is given."""
KEPT: Final = "partitions"
"""The file in the folder of the logs with the number of partitions, if that is not 1, and a name of the folder."""


class LikesOptions(FaceOptions, frozen=True):
    """Likes, counts and rankings, for any Redis client. `bind` is where clients connect."""

    folder: Annotated[
        str,
        key(
            "Folder of the log, on a disk that keeps what it has synced",
            "empty: `likes` in the folder of the instance, or of the node; that of an instance may be in memory",
        ),
    ] = ""
    advertise: Annotated[
        str,
        key(
            "Host that clients of a cluster are told for the ports of a node, in `CLUSTER SLOTS` and `MOVED`",
            "empty: that of `bind`; of 0.0.0.0 the address by which this machine reaches others",
            pattern=r"^[A-Za-z0-9:._-]{0,255}$",
        ),
    ] = ""
    log: Annotated[
        str,
        key(
            "The log in Kafka, `kafka://HOST:PORT,HOST:PORT/PREFIX`: a node on any machine goes on from there",
            "empty: in `folder`",
            pattern=rf"^(|{URL})$",
        ),
    ] = ""
    partitions: Annotated[
        int,
        key(
            "Partitions over which nodes share the items, for good; more than 1: clients see a Redis Cluster",
            "0: as before in this folder; else 16 where `up.likes` is above 1, else 1",
            ge=0,
            le=PARTITIONS_MAX,
        ),
    ] = 0
    lease_ms: Annotated[
        int,
        key(
            "Silence after which other nodes take a node's partitions over",
            "shorter than 5 s, longer than a short stop of the machine",
            "ms",
            ge=500,
            le=60_000,
        ),
    ] = 2_500
    segment_mib: Annotated[
        int,
        key("Size of one file of the log; it takes one more than its records need, and two spares", "", "MiB", ge=8),
    ] = 64
    items_by_user: Annotated[
        bool, key("Keep what each user likes, for `muster likes of`", "8 bytes a like, 4 a user")
    ] = True
    database: Annotated[
        str,
        key(
            "Where likes are written behind, and from where a node starts: `sqlite`: the file `likes.db` beside the log; "
            "`sqlite:///PATH`, `mysql://USER@HOST:PORT/NAME`, `postgresql://USER@HOST:PORT/NAME`",
            "empty: as `database.url` says, or `sqlite`",
        ),
    ] = ""
    database_password_file: Annotated[
        str, key("File with the password of the database's user, one line", "empty: `database.password_file`")
    ] = ""
    write_behind_ms: Annotated[
        int,
        key("Time between two passes to the database", "the log is durable at once", "ms", ge=100, le=3_600_000),
    ] = 30_000
    snapshot_records: Annotated[
        int,
        key(
            "Records of the log after which a pass also writes a snapshot, from which a node starts",
            "a start applies about two million a second",
            ge=1,
            le=1 << 32,
        ),
    ] = 1_000_000
    redis: Annotated[
        str,
        key(
            "A Redis that gets counts and rankings each second, for web servers to read: `redis://USER@HOST:PORT/DB`",
            "empty: none",
        ),
    ] = ""
    redis_password_file: Annotated[str, key("File with the password of the user of that Redis, one line", "")] = ""
    redis_prefix: Annotated[
        str,
        key(
            "Beginning of the keys there: `PREFIXcount:ITEM`, and `PREFIXrank`, `PREFIXrank:FIELD`",
            "apart from all else in it",
            pattern=r"^[A-Za-z0-9:_.-]{0,64}$",
        ),
    ] = "likes:"
    users_file: Annotated[
        str,
        key(
            "File with a user and a password a line, `USER:PASSWORD`; clients need one of them",
            "empty: every client that reaches the port is let in",
        ),
    ] = ""
    tls_cert_file: Annotated[str, key("File with the certificate, PEM; then clients speak TLS", "empty: no TLS")] = ""
    tls_key_file: Annotated[str, key("File with the key of the certificate, PEM", "")] = ""
    connections_max: Annotated[
        int,
        key("Most clients at once; further ones are refused as by Redis", "up to 2 MiB each", ge=1, le=1 << 20),
    ] = 10_000
    live_rate: Annotated[
        int,
        key(
            "Counts of one item a second, at most, in its room `likes:ITEM`",
            "people see no more; 0: no counts in rooms",
            "1/s",
            ge=0,
            le=10,
        ),
    ] = 10
    live_rate_all: Annotated[
        int,
        key(
            "Counts of all items a second, at most; the newest count of each waits",
            "a share of what one proxy takes",
            "1/s",
            ge=1,
            le=100_000,
        ),
    ] = 2_000


class LikesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a node of likes is told. Paths are absolute; empty ones are not used."""

    options: LikesOptions
    folder: str
    """Of the log."""
    instance_folder: str
    """Of the instance, where there is no registry."""
    instance: str
    """The name under which its rows are in the database."""
    partitions: int = 1
    database: str
    """Its URL; `{partition}` stands for a partition's number."""
    database_password_file: str
    redis_password_file: str
    users_file: str
    tls_cert_file: str
    tls_key_file: str


def settle(options: LikesOptions, around: Around) -> LikesSettings:
    """Made from the configuration."""
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
