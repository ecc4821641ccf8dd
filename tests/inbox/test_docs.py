"""`docs/inbox.md` says what is there, and its examples run as printed."""

import asyncio
import os
import re
import textwrap
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from muster.inbox import entry
from muster_server.systems.inbox.options import InboxOptions
from muster_server.systems.inbox.shapes import Outcome
from muster_server.systems.inbox.target import entry as taken
from tests.documents import ROOT, cells, spans
from tests.http.conftest import Beside
from tests.waiting import PATIENT_S

PAGE = (ROOT / "docs" / "inbox.md").read_text()


def example(name: str) -> str:
    """A marked block of the page."""
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def test_every_key_that_is_named_exists_and_every_option_is_read_somewhere() -> None:
    fields = set(InboxOptions.__struct_fields__)
    named = {word.partition(".")[2] for word in spans(PAGE) if re.fullmatch(r"inbox\.[a-z_]+", word)} - {"db"}
    assert named - fields <= {"entry"}
    text = "\n".join(file.read_text() for file in (ROOT / "systems" / "inbox").rglob("*.py"))
    assert {each for each in fields if not re.search(rf"(options|section\(ROLE\))\.{each}\b", text)} == {"bind"}


def test_every_outcome_has_its_row() -> None:
    rows = {row[0].strip("`") for row in cells(PAGE, "outcome", "meaning")}
    assert rows == set(get_args(Outcome))


async def test_the_example_in_python_runs(beside: Beside, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"URL": beside.server.url, "KEY": beside.key("notify:*", "broadcast:*", "inbox:*")}
    body = textwrap.indent(example("python"), "    ")
    exec("async def run():\n" + body, names)
    await names["run"]()  # type: ignore[operator]
    said = capsys.readouterr().out
    assert "1 like {'song': 3} 1" in said
    assert "{'like': 1, 'news': 1}" in said


async def test_the_examples_with_curl_run_as_printed(beside: Beside) -> None:
    key = beside.key("notify:*", "broadcast:*", "inbox:*")
    shell = await asyncio.create_subprocess_exec(
        "sh",
        "-ec",
        example("curl").replace("curl -s", "curl --fail-with-body -s"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "URL": beside.server.url, "KEY": key, "no_proxy": "*"},
    )
    out, _ = await asyncio.wait_for(shell.communicate(), PATIENT_S)
    assert shell.returncode == 0, out.decode()
    lines = out.decode().splitlines()
    assert '"outcome":"new"' in lines[0]
    assert '"data":{"song":3}' in lines[1]
    assert '"total_unread":0' in lines[3]


def test_an_entry_of_the_library_is_one_of_the_target() -> None:
    said = taken("notices:1", msgspec.json.encode(entry("order", {"order": 7}, group="g", id="o")), "application/json")
    assert (said.kind, said.data, said.group, said.id) == ("order", b'{"order":7}', "g", "o")


def test_the_schema_of_the_migration_is_that_of_the_tables(tmp_path: Path) -> None:
    """Columns and indexes, as SQLite has them."""
    import sqlalchemy as sa

    from muster_server.plane.database.dialects import Sqlite
    from muster_server.plane.database.migrate import Schema, upgrade
    from muster_server.systems.inbox.database import schema

    made = sa.create_engine(f"sqlite:///{tmp_path / 'migrated.db'}")
    with made.connect() as connection:
        upgrade(connection, Sqlite(), "here", Schema(schema.STEPS, schema.VERSION_TABLE))
        there = sa.inspect(connection)
        for table in schema.metadata.sorted_tables:
            columns = {each["name"]: each["nullable"] for each in there.get_columns(table.name)}
            assert columns == {column.name: column.nullable for column in table.columns}
            indexes = {each["name"]: each["column_names"] for each in there.get_indexes(table.name)}
            assert indexes == {index.name: [each.name for each in index.columns] for index in table.indexes}
    made.dispose()
