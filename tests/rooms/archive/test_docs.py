"""`docs/archive.md` says what is there, and its examples run as printed."""

import asyncio
import os
import re
import textwrap

import pytest

import muster
import muster.testing
from muster_server.systems.rooms.archive.options import ArchiveOptions
from muster_server.systems.rooms.archive.shapes import ReadLatest
from tests.documents import ROOT, cells, spans
from tests.http.conftest import Beside, eventually
from tests.rooms.archive.conftest import Rig, Rigged
from tests.rooms.archive.test_node import until_stored
from tests.waiting import PATIENT_S

PAGE = (ROOT / "docs" / "archive.md").read_text()


def example(name: str) -> str:
    """A marked block of the page."""
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
async def rig(rigged: Rigged) -> Rig:
    """A node that keeps the room of the examples."""
    made = await rigged(rooms="chat:lobby,prices")
    made.history_max = 1_000
    return made


@pytest.fixture
async def lobby(rig: Rig, address: muster.testing.Instance) -> None:
    """The room of the examples, with its messages."""
    async with muster.connect(address, gateways=[]) as client:
        for number in range(5):
            await client.publish("chat:lobby", b"%d" % number)
    await until_stored(rig, "chat:lobby", range(5))


def test_every_key_that_is_named_exists_and_every_option_is_read_somewhere() -> None:
    fields = set(ArchiveOptions.__struct_fields__)
    named = {word.partition(".")[2] for word in spans(PAGE) if re.fullmatch(r"archive\.[a-z_]+", word)} - {"db"}
    assert named <= fields
    text = "\n".join(file.read_text() for file in (ROOT / "systems" / "rooms" / "archive").rglob("*.py"))
    assert {each for each in fields if not re.search(rf"options\.{each}\b", text)} == {"bind"}


def test_every_parameter_has_its_row() -> None:
    assert {row[0].strip("`") for row in cells(PAGE, "parameter", "meaning")} == {
        "history",
        "since",
        "reverse",
        "after",
    }


@pytest.mark.usefixtures("lobby")
async def test_the_example_in_python_runs(beside: Beside, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"URL": beside.server.url, "KEY": beside.key("history:*")}
    body = textwrap.indent(example("python"), "    ")
    exec("async def run():\n" + body, names)
    await names["run"]()  # type: ignore[operator]
    said = capsys.readouterr().out
    assert "[b'3', b'4'] ()\n" in said
    assert said.endswith(" b'4'\n")


@pytest.mark.usefixtures("lobby")
async def test_the_examples_with_curl_run_as_printed(beside: Beside) -> None:
    shell = await asyncio.create_subprocess_exec(
        "sh",
        "-ec",
        example("curl").replace("curl -s", "curl --fail-with-body -s"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "URL": beside.server.url, "KEY": beside.key("history:*"), "no_proxy": "*"},
    )
    out, _ = await asyncio.wait_for(shell.communicate(), PATIENT_S)
    assert shell.returncode == 0, out.decode()
    lines = out.decode().splitlines()
    assert '"data":"3"' in lines[0]
    assert '"at":' in lines[1]


async def test_the_example_of_keys_runs(
    beside: Beside, rig: Rig, address: muster.testing.Instance, capsys: pytest.CaptureFixture[str]
) -> None:
    async with muster.connect(address, gateways=[]) as client:
        for key, price in (("EUR", b"1.08"), ("GBP", b"0.85"), ("EUR", b"1.09")):
            await client.publish("prices", price, headers={"key": key})

    async def kept() -> bool:
        return [each.data for each in (await rig.archive.latest(ReadLatest("prices", 9))).messages] == [
            b"0.85",
            b"1.09",
        ]

    await eventually(kept)
    names: dict[str, object] = {"URL": beside.server.url, "KEY": beside.key("history:*"), "ADDRESS": address}
    exec("async def run():\n" + textwrap.indent(example("latest"), "    "), names)
    await names["run"]()  # type: ignore[operator]
    assert capsys.readouterr().out.endswith("{'GBP': b'0.85', 'EUR': b'1.10'}\n")
