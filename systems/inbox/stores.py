"""The store of inboxes for `muster check` and `muster repair`: the database, where it is a file here."""

from muster_server.control.cluster.instance import Record, folder
from muster_server.control.cluster.specs import absolute
from muster_server.control.config.options import Config
from muster_server.plane.kind import Around
from muster_server.plane.stores import SqliteStore, Store, sqlite_file
from muster_server.systems.inbox.options import settle
from muster_server.systems.inbox.shapes import ROLE


def stores(config: Config, record: Record | None) -> list[Store]:
    """Entries, broadcasts and marks."""
    around = Around(config.section, config.instance.name, folder(config).path, 0, absolute, {}, config.runs)
    file = sqlite_file(settle(config.section(ROLE), around).database)
    return [SqliteStore("inbox", file)] if file is not None and file.exists() else []
