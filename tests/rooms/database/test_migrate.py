"""An older schema is brought up to date, a newer one is refused, an interrupted step is finished."""

import shutil
from pathlib import Path

import pytest

from muster_server.plane.database import connections
from muster_server.plane.database.errors import Refused, Unavailable
from muster_server.plane.database.url import location
from muster_server.systems.rooms.database import schema
from muster_server.systems.rooms.database.records import Membership, Partition
from muster_server.systems.rooms.database.store import Store
from tests.databases import Database, plain

STEP = '''"""What a later program adds."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("muster_memberships", sa.Column("later", sa.Integer))
'''
ONE = Membership(1, 1, 5, 6, 7, True)


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """The steps of a later program."""
    steps = tmp_path / "100% later"
    shutil.copytree(schema.STEPS, steps, ignore=shutil.ignore_patterns("__pycache__"))
    (steps / "versions" / "step_0003_later.py").write_text(STEP)
    return steps


async def test_an_older_schema_is_brought_up_to_date_with_what_is_in_it(database: Database, later: Path) -> None:
    async with Store(location(database.url), "muster") as store:
        await store.write([ONE])
    for _ in range(2):
        async with Store(location(database.url), "muster", steps=later) as store:
            assert [page async for page in store.load(Partition())] == [[ONE]]
    assert await plain(database.url, "SELECT later FROM muster_memberships") == [(None,)]


async def test_a_newer_schema_is_refused_in_one_line_and_left_alone(database: Database, later: Path) -> None:
    async with Store(location(database.url), "muster", steps=later) as store:
        await store.write([ONE])
    async with Store(location(database.url), "muster") as store:
        for _ in range(2):
            with pytest.raises(
                Refused, match=r"its schema 0003 is newer than this program, which knows 0002$"
            ) as refused:
                await store.write([ONE])
    assert "\n" not in str(refused.value)
    assert await plain(database.url, f"SELECT version_num FROM {schema.VERSION_TABLE}") == [("0003",)]


async def test_an_upgrade_has_a_limit_of_its_own(
    database: Database, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step may write a large table again, which takes longer than any other call."""
    async with Store(location(database.url), "muster") as store:
        await store.write([ONE])
    monkeypatch.setattr(connections, "UPGRADE_S", 1e-6)
    async with Store(location(database.url), "muster") as store:
        await store.write([ONE])  # there is nothing to upgrade
    async with Store(location(database.url), "muster", steps=later) as store:
        with pytest.raises(Unavailable, match="no answer in time"):
            await store.write([ONE])
        monkeypatch.undo()
        await store.write([ONE])


@pytest.mark.parametrize("done", [1, 2, 3])
async def test_a_step_that_was_interrupted_is_finished(database: Database, done: int) -> None:
    """MySQL commits each statement of a step by itself."""
    async with Store(location(database.url), "muster") as store:
        await store.write([ONE])
    await plain(database.url, f"DELETE FROM {schema.VERSION_TABLE}")
    for index in ("life", "left")[done - 1 :]:
        on = f" ON {schema.TABLE}" if database.url.startswith("mysql") else ""
        await plain(database.url, f"DROP INDEX {schema.TABLE}_{index}{on}")
    async with Store(location(database.url), "muster") as store:
        assert [page async for page in store.load(Partition())] == [[ONE]]
    assert await plain(database.url, f"SELECT version_num FROM {schema.VERSION_TABLE}") == [("0002",)]


async def test_the_steps_lead_to_the_table_that_the_program_uses(database: Database) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from muster_server.plane.database.dialects import DIALECTS

    where = location(database.url)
    async with Store(where, "muster") as store:
        await store.open()
    engine = DIALECTS[where.kind].engine(where)
    async with engine.connect() as connection:
        options = {"version_table": schema.VERSION_TABLE}
        differences = await connection.run_sync(
            lambda sync: compare_metadata(MigrationContext.configure(sync, opts=options), schema.metadata)
        )
    await engine.dispose()
    assert differences == []
