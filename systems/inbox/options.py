"""The keys of inboxes, the settings of their nodes, and the function that makes settings from keys."""

from typing import Annotated, Any, Final

import msgspec

from muster_server.plane.kind import Around
from muster_server.plane.options import FaceOptions, key
from muster_server.systems.inbox.shapes import KIND, Mail

SQLITE: Final = "sqlite"
NONE: Final = "none"
DAY_MS: Final = 86_400_000


class InboxOptions(FaceOptions, frozen=True):
    """Keeps a numbered list of entries per user, and broadcasts to audiences. `bind` is for the HTTP face, commands and
    other nodes, which prove the cluster's secret; the connections are not encrypted."""

    database: Annotated[
        str,
        key(
            "Database of all inboxes: `sqlite`: the file `inbox.db` in the folder of the instance, or of the node; "
            "`sqlite:///PATH`, `mysql://USER@HOST:PORT/NAME`, `postgresql://USER@HOST:PORT/NAME`",
            "empty: `database.url`, or `sqlite` without it",
        ),
    ] = ""
    database_password_file: Annotated[
        str, key("File with the password of the database's user, one line", "empty: `database.password_file`")
    ] = ""
    entries_max: Annotated[
        int,
        key(
            "Limit of entries of one user; beyond it the oldest are dropped and counted",
            "years of notices; a page of 10,000 is as fast as one of 100",
            "entries",
            ge=100,
            le=1_000_000,
        ),
    ] = 10_000
    keep_days: Annotated[int, key("How long entries are kept, read or not", "a year", "days", ge=1, le=3_650)] = 365
    ids_days: Annotated[
        int,
        key(
            "Time for which the id of an entry or a broadcast is known, so that it is not accepted again",
            "longer than programs and delayed messages retry",
            "days",
            ge=1,
            le=365,
        ),
    ] = 14
    broadcast_days: Annotated[
        int, key("How long a broadcast without an end is shown", "a month", "days", ge=1, le=3_650)
    ] = 30
    broadcasts_max: Annotated[
        int,
        key(
            "Limit of broadcasts that are shown at the same time, over all audiences",
            "each page looks at those of its user's audiences",
            "broadcasts",
            ge=1,
            le=1_000_000,
        ),
    ] = 10_000
    required: Annotated[
        str,
        key(
            "Kinds that no user can turn off, separated by commas, for example `verification,login`",
            "empty: a user can turn every kind off",
            pattern=rf"^({KIND}(,{KIND})*)?$",
        ),
    ] = ""
    mail_topic: Annotated[
        str,
        key(
            "Topic of delayed messages that gets a message for each entry, or for each day, that is to be mailed",
            "empty: nothing is mailed",
            pattern=r"^[A-Za-z0-9_.-]{0,64}$",
        ),
    ] = ""
    mail: Annotated[
        Mail,
        key(
            "When an entry is mailed, for kinds without a setting of the user: `never`, `at_once`, `unless_read` (after "
            "`mail_wait_s`), or `daily`",
            "a user asks for mails",
        ),
    ] = "never"
    mail_wait_s: Annotated[
        int, key("Time to read an entry before it is mailed, with `unless_read`", "ten minutes", "s", ge=1, le=604_800)
    ] = 600
    mail_daily_minute: Annotated[
        int, key("Minute of the day, in UTC, of daily mails", "8:00", "minutes", ge=0, le=1_439)
    ] = 480


class InboxSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a node."""

    folder: str
    """Folder of the instance or the node."""
    database: str
    database_password_file: str
    instance: str
    pushes: bool
    """Whether presence runs, so that devices can be told."""
    options: dict[str, Any]


def settle(options: InboxOptions, around: Around) -> InboxSettings:
    """Make the settings from the configuration."""
    shared: Any = around.section("database")
    url = options.database or shared.url
    password_file = options.database_password_file or ("" if options.database else shared.password_file)
    return InboxSettings(
        folder=str(around.folder),
        database=f"sqlite:///{around.folder / 'inbox.db'}" if url in {"", NONE, SQLITE} else url,
        database_password_file=around.absolute(password_file),
        instance=around.instance,
        pushes=around.runs("presence"),
        options=msgspec.to_builtins(options),
    )
