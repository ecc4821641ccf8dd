"""`muster check` and `muster repair` for the fleet's database, memberships, API keys and the embedded registry."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster_server.control.cli.main import main
from muster_server.control.registry import server
from muster_server.control.registry.store import Store
from muster_server.plane.systems import actions
from muster_server.systems.http import keys

Muster = Callable[..., tuple[int, dict[str, Any]]]
FILES = {"fleet": "fleet.db", "rooms": "memberships.db", "http": "http-keys.json", "registry": "registry.state"}


def database(file: Path) -> None:
    """A table with rows on several pages."""
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT)")
        connection.executemany("INSERT INTO rows VALUES (?, ?)", [(number, "x" * 500) for number in range(100)])
    connection.close()


def registry(file: Path) -> None:
    """The state of a registry with nothing in it."""
    file.write_bytes(msgspec.msgpack.encode(server._Saved(server.FORMAT, [], Store().dump())))


def three_keys(file: Path) -> None:
    """Keys of three names."""
    for name in ("web", "app", "shop"):
        keys.create(file, name, ["read"], {each.name: each.text for each in actions().values()})


MADE: dict[str, Callable[[Path], None]] = {
    "fleet": database,
    "rooms": database,
    "http": three_keys,
    "registry": registry,
}


@pytest.fixture
def muster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Muster:
    """Runs a command for the instance in this folder."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("MUSTER_INSTANCE__DIR", str(tmp_path))

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        code = main([*words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def flipped(file: Path, share: float) -> None:
    """Damage a part of the file."""
    raw = bytearray(file.read_bytes())
    at = int(len(raw) * share)
    raw[at : at + 40] = bytes(each ^ 0xFF for each in raw[at : at + 40])
    file.write_bytes(raw)


@pytest.mark.parametrize("system", MADE)
def test_a_damaged_store_is_named_and_made_again_of_what_is_whole(system: str, tmp_path: Path, muster: Muster) -> None:
    file = tmp_path / FILES[system]
    MADE[system](file)
    file.chmod(0o600)
    assert muster("check")[0] == 0
    flipped(file, 0.5)
    code, said = muster("check")
    assert code == 1
    assert {(each["store"], each["file"]) for each in said["faults"]} == {(system, str(file))}
    code, said = muster("repair")
    assert code == 0
    assert [each.partition(":")[0] for each in said["done"]] == [system]
    assert muster("check")[0] == 0
    assert list(tmp_path.glob(f"damaged-*/{file.name}"))


def test_repaired_keys_are_those_that_are_whole(tmp_path: Path, muster: Muster) -> None:
    file = tmp_path / FILES["http"]
    three_keys(file)
    before = keys.read(file).keys
    raw = file.read_bytes()
    at = raw.index(before[1].sha256.encode())
    file.write_bytes(raw[:at] + b"?" + raw[at + 1 :])
    assert muster("repair", "http")[0] == 0
    assert keys.read(file).keys == (before[0], before[2])
