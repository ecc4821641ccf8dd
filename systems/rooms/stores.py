"""The stores of rooms for `muster check` and `muster repair`: the routers' memberships and the archive, where they are in a
file here."""

from muster_server.control.cluster.instance import Record, folder
from muster_server.control.cluster.specs import absolute
from muster_server.control.config.options import Config
from muster_server.plane.kind import Around
from muster_server.plane.stores import SqliteStore, Store, sqlite_file
from muster_server.systems.rooms.archive.options import settle as archived
from muster_server.systems.rooms.archive.shapes import ROLE
from muster_server.systems.rooms.router import settle


def stores(config: Config, record: Record | None) -> list[Store]:
    """Memberships, and messages in the archive."""
    around = Around(config.section, config.instance.name, folder(config).path, 0, absolute, {}, config.runs)
    kept = settle(config.section("router"), around).database
    archive = archived(config.section(ROLE), around).database
    files = {"rooms": kept.url if kept is not None else "", "archive": archive}
    found = ((name, sqlite_file(url)) for name, url in files.items())
    return [SqliteStore(name, file) for name, file in found if file is not None and file.exists()]
