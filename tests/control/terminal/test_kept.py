"""Commands without the registry: by the last map that was read, which says its age, or by the map of a node."""

import asyncio
import contextlib
import json
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster_server.control.cluster.instance import Endpoint, Record
from muster_server.control.errors import TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster_server.control.node import admin
from muster_server.control.terminal import common, found, kept
from muster_server.control.terminal.found import Target
from muster_server.control.terminal.readings import read
from tests.control.command import Command
from tests.control.nodes import processes
from tests.ports import free_ports

URL = "zk://10.0.0.1:2181/muster"
RECORD = Record(
    name="muster", version="0", pid=0, started=0, token_file="", processes=processes(), faults=False, registry=URL
)


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserError:
    """A registry that does not answer, and a cache of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MUSTER_INSTANCE__DIR", str(tmp_path / "instance"))
    error = UserError(f"the registry {URL} does not answer within 3 s", UNAVAILABLE)

    @contextlib.asynccontextmanager
    async def reading(*_: Any) -> AsyncIterator[Any]:
        raise error
        yield

    monkeypatch.setattr(found, "reading", reading)
    return error


async def looked(**options: Any) -> Record:
    async with found.found(Target(None, URL), **options) as nodes:
        return await nodes.record()


async def test_the_last_map_is_shown_with_its_age_and_only_by_commands_that_show(
    away: UserError, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="does not answer"):
        await looked(kept=True)
    server = Endpoint(node=3, host="10.0.0.3", port=7_400, public_key="ab" * 32)
    kept.keep(URL, RECORD.with_endpoints([("gateway", server)]))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 180.0)
    assert await looked(kept=True) == RECORD, "no credential goes to a server whose certificate may have ended"
    assert capsys.readouterr().err == f"muster: {away}; showing the map of 3 min ago\n"
    with pytest.raises(UserError, match="does not answer"):
        await looked()
    away.exit_code = TRY_LATER
    with pytest.raises(UserError, match="does not answer"):
        await looked(kept=True)


async def test_a_map_that_others_could_have_written_or_that_is_none_is_not_used(
    away: UserError, tmp_path: Path
) -> None:
    kept.keep(URL, RECORD)
    (file,) = (tmp_path / "cache" / "muster").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o606)
    assert kept.last(URL) is None
    file.chmod(0o600)
    assert kept.last(URL) is not None
    file.write_text("{}")
    assert kept.last(URL) is None
    assert kept.last(URL + "2") is None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "120 min"), (7_200, "2 h"), (172_800, "2 d")],
)
def test_an_age_is_in_words(seconds: float, said: str) -> None:
    assert kept.words(seconds) == said


def test_a_node_gives_the_map_without_any_registry(muster: Command, tmp_path: Path) -> None:
    with muster.up():
        port = json.loads(muster("status", "--json").stdout)["nodes"][0]["admin"].removeprefix("http://")
        elsewhere = {"MUSTER_INSTANCE__DIR": str(tmp_path / "elsewhere")}
        done = muster("status", "--node", port, "--json", **elsewhere)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        names = {node["name"] for node in document["nodes"]}
        assert names == {"muster-router", "muster-broker", "muster-gateway", "muster-proxy"}
        assert document["registry"] == f"as {port} knows it"
        for words in (("links",), ("cluster", "show"), ("top", "--once"), ("rooms", "ls")):
            assert muster(*words, "--node", port, **elsewhere).returncode == 0, words
        done = muster("links", "--node", port, "--probe", "1", **elsewhere)
        assert (done.returncode, done.stderr.count("\n")) == (USAGE, 1)
    for wrong, said in (("nonsense", "is not an IP address and port"), (port, "does not answer")):
        done = muster("status", "--node", wrong, **elsewhere)
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        assert said in done.stderr


def test_a_record_survives_its_file() -> None:
    record = kept.KeptRecord(1.0, RECORD)
    assert msgspec.json.decode(msgspec.json.encode(record), type=kept.KeptRecord) == record


async def test_one_line_says_what_a_node_waits_for_at_its_admin_port() -> None:
    address = "127.0.0.1", free_ports(1)[0]
    early = admin.Early({"role": "router", "node": 1, "name": "router", "version": "0"})
    early.waits = "the registry zk://h:1"
    port = admin.Port(early)
    port.open(address)
    process = msgspec.structs.replace(processes()[0], admin=address)
    try:
        status, said = await asyncio.to_thread(common.get, process, "/api/v1/status")
        assert (status, said["state"], said["waits"]) == (200, "waiting", "the registry zk://h:1")
        with pytest.raises(UserError, match=r"router waits for the registry zk://h:1; try again"):
            await asyncio.to_thread(common.fetch, process, "/metrics")
        assert (await asyncio.to_thread(common.fetch, process, "/healthz"))[0] == 200
        assert (await asyncio.to_thread(read, process)).state == "waits for the registry zk://h:1"
    finally:
        await port.close()
