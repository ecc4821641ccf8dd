"""A file with a secret that is empty or of another length: one line with the mend, before anything starts."""

from pathlib import Path

import pytest

from muster.errors import Unavailable
from muster.instance import read_token
from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Folder
from muster_server.control.errors import ConfigError
from muster_server.control.host import files
from muster_server.plane import trust
from muster_server.plane.spec import SpecError
from tests.control.command import Command

OF_THE_FOLDER = (
    "gateway.key",
    "proxy.key",
    "token",
    "names.key",
    "cluster.secret",
    "reset.secret",
    "jwt.secret",
    "signing.key",
)


@pytest.mark.parametrize("name", OF_THE_FOLDER)
def test_an_empty_secret_ends_the_start_with_one_line_that_mends_it(name: str, tmp_path: Path) -> None:
    place = Folder(tmp_path / "folder")
    instance.prepare(place, ["gateway", "proxy"])
    assert list(instance.wrong_secrets(place)) == []
    file = place.path / name
    file.write_bytes(b"\n")
    with pytest.raises(ConfigError) as said:
        instance.prepare(place, ["gateway", "proxy"])
    assert str(said.value).startswith(str(file))
    assert str(said.value).endswith("; remove it, and the next start makes a new one")
    assert "\n" not in str(said.value)
    file.unlink()
    instance.prepare(place, ["gateway", "proxy"])


def test_a_secret_that_anybody_may_write_ends_the_start(tmp_path: Path) -> None:
    place = Folder(tmp_path / "folder")
    instance.prepare(place)
    place.cluster_secret.chmod(0o602)
    with pytest.raises(ConfigError, match=r"cluster\.secret: any user can write it; remove it"):
        instance.prepare(place)


def test_a_secret_of_another_user_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Folder(tmp_path / "folder")
    instance.prepare(place)
    monkeypatch.setattr(files, "_trusted", lambda: frozenset({place.path.stat().st_uid + 1}))
    with pytest.raises(ConfigError, match=r"cluster\.secret: belongs to another user; remove it"):
        instance.prepare(place)


def test_an_empty_key_of_a_served_node_ends_its_start_with_one_line(tmp_path: Path) -> None:
    place = Folder(tmp_path / "g1")
    place.path.mkdir()
    place.server_key("gateway").touch()
    with pytest.raises(ConfigError, match=r"gateway\.key: invalid length: 0 bytes \(expected 32\); remove it"):
        instance.prepare_node(place, ["gateway"])


def test_the_command_says_the_line_and_doctor_a_failure(muster: Command) -> None:
    muster.folder.mkdir(0o700)
    (muster.folder / "proxy.key").touch()
    done = muster("up")
    assert done.returncode == 78
    assert done.stderr.splitlines()[-1].startswith(f"muster: {muster.folder}/proxy.key: invalid length: 0 bytes")
    found = muster("doctor")
    (line,) = [each for each in found.stdout.splitlines() if "proxy.key" in each]
    assert line.startswith("fail")
    assert f"rm {muster.folder}/proxy.key" in line
    assert found.returncode == 1


def test_a_configured_file_that_is_empty_fails_in_doctor(muster: Command, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch(0o600)
    found = muster("doctor", MUSTER_CLUSTER__TOKEN_FILE=str(empty), MUSTER_CLUSTER__SECRET_FILE=str(empty))
    lines = [each for each in found.stdout.splitlines() if str(empty) in each]
    assert [line.split()[0] for line in lines] == ["fail", "fail"]
    assert "cluster.secret_file" in lines[0]
    assert "cluster.token_file" in lines[1]


def test_an_empty_token_opens_nothing_and_is_named_at_both_ends(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b" \n")
    with pytest.raises(Unavailable, match=r"token is empty; write"):
        read_token(file)
    with pytest.raises(SpecError, match=r"token is empty, which would admit every client"):
        trust.shared_token(str(file))


def test_a_token_file_may_end_with_a_newline_and_begin_with_a_mark_of_its_order_of_bytes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for content in (b"word", b"word\n", b"word\r\n", b"\xef\xbb\xbfword\n"):
        file.write_bytes(content)
        assert read_token(file) == trust.shared_token(str(file)) == b"word"
