"""API keys: the file, its scopes, and that a running process follows it."""

import json
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog

from muster_server.control.errors import ConfigError, UserError
from muster_server.systems.http import keys, uses
from muster_server.systems.http import server as edge
from muster_server.systems.http.cli import commands
from muster_server.systems.http.keys import Keyring, covers
from muster_server.systems.http.uses import Uses
from tests.http.conftest import Make, eventually

ACTIONS = {"publish": "", "read": "", "members": ""}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def ring(file: Path) -> Keyring:
    made = Keyring(file, structlog.get_logger())
    made.look()
    return made


@pytest.mark.parametrize(
    ("scope", "action", "room", "allowed"),
    [
        ("publish:*", "publish", "anything", True),
        ("publish:*", "read", "anything", False),
        ("publish:sports:*", "publish", "sports:final", True),
        ("publish:sports:*", "publish", "sportsbar:x", False),
        ("publish:sports:f*", "publish", "sports:final", True),
        ("publish:sports:final", "publish", "sports:final", True),
        ("publish:sports:final", "publish", "sports:final2", False),
        ("publish:lobby", "publish", "default:lobby", True),
        ("publish:default:lobby", "publish", "lobby", True),
        ("publish:lob*", "publish", "lobby", True),
        ("publish:lob*", "publish", "lob:x", False),
        ("publish:a:b*", "publish", "a:b:c", True),
    ],
)
def test_a_scope_covers_rooms_by_name_and_prefix(scope: str, action: str, room: str, allowed: bool) -> None:
    assert covers(scope, action, room) is allowed


@pytest.mark.parametrize("scope", ["pubish:*", "publish:a*b", "publish:**", "publish:a\nb", "*"])
def test_a_scope_that_says_nothing_is_refused(file: Path, scope: str) -> None:
    with pytest.raises(UserError, match="--scope"):
        keys.create(file, "web", [scope], ACTIONS)
    assert not file.exists()


def test_an_action_alone_is_for_all_rooms(file: Path) -> None:
    key, _ = keys.create(file, "web", ["members", "read:"], ACTIONS)
    assert key.scopes == ("members:*", "read:*")


def hidden(key: str) -> str:
    """The part of a key that only its owner has. It may have any number of `_`."""
    prefix, _, drawn = key.split("_", 2)
    assert (prefix, len(drawn)) == ("mk", 43)
    return drawn


def test_the_file_has_no_secret_and_is_for_its_owner_alone(file: Path) -> None:
    _, secret = keys.create(file, "web", ["read"], ACTIONS)
    assert hidden(secret) not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_opens_until_it_is_revoked(file: Path) -> None:
    _, secret = keys.create(file, "web", ["read"], ACTIONS)
    _, other = keys.create(file, "app", ["read"], ACTIONS)
    keyring = ring(file)
    found = keyring.find(secret)
    assert found is not None
    assert found.name == "web"
    keys.revoke(file, "web")
    assert keyring.look()
    assert keyring.find(secret) is None
    assert keyring.find(other) is not None


def test_a_new_key_opens_at_once(file: Path) -> None:
    keys.create(file, "web", ["read"], ACTIONS)
    keyring = ring(file)
    loaded = keyring.changes
    _, secret = keys.create(file, "app", ["read"], ACTIONS)
    found = keyring.find(secret)
    assert found is not None
    assert found.name == "app"
    assert keyring.changes == loaded + 1
    for _ in range(3):
        assert keyring.find("mk_000000000000" + secret[15:]) is None
    assert keyring.changes == loaded + 1


@pytest.mark.parametrize("change", ["last", "first", "id", "shorter", "longer", "empty"])
def test_another_secret_opens_nothing(file: Path, change: str) -> None:
    _, secret = keys.create(file, "web", ["read"], ACTIONS)
    other = {
        "last": secret[:-1] + ("A" if secret[-1] != "A" else "B"),
        "first": secret[:16] + ("A" if secret[16] != "A" else "B") + secret[17:],
        "id": "mk_000000000000" + secret[15:],
        "shorter": secret[:-1],
        "longer": secret + "A",
        "empty": "",
    }[change]
    assert ring(file).find(other) is None


def test_a_name_is_given_once(file: Path) -> None:
    keys.create(file, "web", ["read"], ACTIONS)
    with pytest.raises(UserError, match="already"):
        keys.create(file, "web", ["read"], ACTIONS)


def test_a_broken_file_leaves_the_keys_as_they_are(file: Path) -> None:
    _, secret = keys.create(file, "web", ["read"], ACTIONS)
    keyring = ring(file)
    file.write_text("{")
    assert not keyring.look()
    assert keyring.find(secret) is not None
    assert keyring.failures == 1
    with pytest.raises(ConfigError, match="written by another version"):
        keys.read(file)


def test_a_file_that_is_gone_has_no_keys(file: Path) -> None:
    _, secret = keys.create(file, "web", ["read"], ACTIONS)
    keyring = ring(file)
    file.unlink()
    assert keyring.look()
    assert keyring.find(secret) is None


def test_writers_at_once_lose_no_key(file: Path) -> None:
    names = [f"key-{at}" for at in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: keys.create(file, name, ["read"], ACTIONS), names))
    assert sorted(key.name for key in keys.read(file).keys) == sorted(names)


def test_the_commands_print_a_key_once_and_list_no_secret(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.create(file, "web", ["publish:sports:*", "read:*"], as_json=False) == 0
    secret = capsys.readouterr().out.strip()
    assert ring(file).find(secret) is not None
    assert commands.ls(file, as_json=True) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(key["name"], key["scopes"]) for key in listed] == [("web", ["publish:sports:*", "read:*"])]
    assert hidden(secret) not in str(listed)
    assert commands.ls(file, as_json=False) == 0
    assert "publish:sports:* read:*" in capsys.readouterr().out
    assert commands.revoke(file, listed[0]["id"]) == 0
    assert keys.read(file).keys == ()
    with pytest.raises(UserError, match="no key 'web'"):
        commands.revoke(file, "web")


async def test_a_key_that_was_made_just_now_opens_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "LOOK_S", 3_600.0)  # only the request itself looks at the file
    beside = await make()
    _, secret = keys.create(beside.keys_file, "web", ["history"], {"history": ""})
    client = beside.client(token=secret)

    async def opens() -> bool:
        return (await client.get("/api/v1/rooms/r/messages")).status_code == 200

    await eventually(opens)


# --- last uses ----------------------------------------------------------------------------------------------------------


def test_the_last_use_of_a_key_is_kept_to_the_minute_with_few_writes(file: Path) -> None:
    now = [1_000_030.0]
    log = structlog.get_logger()
    first, second = (Uses(file, log, lambda: now[0]) for _ in range(2))
    first.note("a")
    first.save("ab")
    assert uses.read(file) == {"a": 1_000_020}
    written = uses.file_beside(file).stat().st_ino
    for _ in range(50):
        now[0] += 1
        first.note("a")
        first.save("ab")
    assert uses.file_beside(file).stat().st_ino == written, "at most one write a minute"
    second.note("b")
    second.save("ab")
    assert uses.read(file) == {"a": 1_000_020, "b": 1_000_080}, "another process keeps what the first one wrote"
    first.save("ab", at_once=True)
    assert uses.read(file) == {"a": 1_000_080, "b": 1_000_080}
    second.note("b")
    second.save("b", at_once=True)
    now[0] += 60
    second.note("b")
    second.save("b")
    assert uses.read(file) == {"b": 1_000_140}, "a revoked key has no use"


def test_a_use_that_comes_while_others_are_written_is_kept(file: Path) -> None:
    now = [1_000_030.0]
    both = Uses(file, structlog.get_logger(), lambda: now[0])

    class Known(list[str]):
        def __iter__(self) -> Iterator[str]:
            now[0] += 60
            both.note("b")
            return super().__iter__()

    both.note("a")
    assert both.due
    both.save(Known("ab"))
    assert both.due
    both.save("ab")
    assert uses.read(file) == {"a": 1_000_020, "b": 1_000_080}


def test_a_folder_that_cannot_be_written_keeps_no_key_out(tmp_path: Path) -> None:
    Uses(tmp_path / "away" / "keys.json", structlog.get_logger()).save("a", at_once=True)
    one = Uses(tmp_path / "away" / "keys.json", structlog.get_logger())
    one.note("a")
    one.save("a")
    assert uses.read(tmp_path / "away" / "keys.json") == {}


async def test_a_restart_keeps_the_last_use_and_the_command_shows_it(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    made = await make()
    client = made.client("read:*")
    before = int(time.time()) // 60 * 60
    assert (await client.get("/api/v1/rooms")).status_code in {200, 403}
    await made.server.stop()
    capsys.readouterr()  # the log of the server
    assert commands.ls(made.settings.keys_file, as_json=True) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert before <= told["used"] <= time.time()
    assert commands.ls(made.settings.keys_file, as_json=False) == 0
    assert time.strftime("%Y-%m-%d %H:%M", time.gmtime(told["used"])) in capsys.readouterr().out
