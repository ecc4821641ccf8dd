"""Texts in the tables of all systems are compared byte by byte, at MariaDB too."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from muster_server.plane.database.migrate import COLLATIONS
from muster_server.plane.database.url import location
from tests.databases import made, plain
from tests.documents import ROOT

if TYPE_CHECKING:
    from tests.databases import Database

SCHEMAS: Final = {each.parent for name in ("plane", "systems") for each in (ROOT / name).rglob("env.py")}


@pytest.fixture
async def empty(request: pytest.FixtureRequest) -> "Database":
    """An empty database of MariaDB."""
    return await made(request.getfixturevalue("mariadb"))


async def test_each_text_column_of_our_tables_compares_bytes_and_spaces(empty: "Database") -> None:
    from muster_server.plane.database.connections import Connections
    from muster_server.plane.database.counters import store as counters
    from muster_server.plane.database.migrate import Schema
    from muster_server.systems.fleet.database import schema as fleet
    from muster_server.systems.inbox.database import schema as inbox
    from muster_server.systems.likes.database import schema as likes
    from muster_server.systems.rooms.archive.database import schema as archive
    from muster_server.systems.rooms.database import schema as rooms

    where, steps = location(empty.url), set[Path]()
    for module in (counters, fleet, inbox, likes, rooms, archive):
        steps.add(module.STEPS)
        connections = Connections(where, Schema(module.STEPS, module.VERSION_TABLE))
        await connections.open()
        await connections.close()
    assert {each.resolve() for each in steps} == SCHEMAS, "each schema of the tree is looked at"
    columns = await plain(
        empty.url,
        "SELECT table_name, column_name, collation_name FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND collation_name IS NOT NULL AND column_name <> 'version_num'",
    )
    assert len(columns) > 10
    assert [each for each in columns if each[2] not in COLLATIONS[:2]] == []
