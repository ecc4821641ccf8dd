"""The store of rooms for `muster check` and `muster repair`: the routers' memberships, where they are in a file here."""

from muster_server.control.cluster.instance import Record, folder
from muster_server.control.cluster.specs import absolute
from muster_server.control.config.options import Config
from muster_server.plane.kind import Around
from muster_server.plane.stores import SqliteStore, Store, sqlite_file
from muster_server.systems.rooms.router import settle


def stores(config: Config, record: Record | None) -> list[Store]:
    """Memberships."""
    around = Around(config.section, config.instance.name, folder(config).path, 0, absolute, {}, config.runs)
    kept = settle(config.section("router"), around).database
    file = sqlite_file(kept.url) if kept is not None else None
    return [SqliteStore("rooms", file)] if file is not None and file.exists() else []
