"""`muster token` signs what gateways and proxies accept, and refuses everything else in one line."""

import time
from pathlib import Path

import pytest

from muster_server.control.cli.token import Wanted, show
from muster_server.control.errors import BAD_CONFIG, UNAVAILABLE, USAGE, UserError
from muster_server.control.terminal.found import Target
from muster_server.control.terminal.users import user_of
from muster_server.plane.auth import Admitted, TokenAuthenticator
from muster_server.plane.kind import Right
from muster_server.plane.trust import Trust
from muster_server.plane.users import HASHED
from muster_server.systems.edge.tokens import EdgeAuthenticator

SECRET, FORMER = "n" * 32, "f" * 40


def configured(tmp_path: Path, content: str | None = f"{SECRET}\n{FORMER}\n") -> Path:
    """A configuration that names a file of secrets, with this content if any."""
    file, config = tmp_path / "jwt.secret", tmp_path / "muster.toml"
    config.write_text(f'[cluster]\njwt_secret_file = "{file}"\n')
    if content is not None:
        file.write_text(content)
    return config


def said(checks: TokenAuthenticator, credential: bytes) -> int | str:
    """The user, or the code of the refusal."""
    answer = checks.authenticate(credential)
    return answer.user if isinstance(answer, Admitted) else answer


@pytest.mark.parametrize(
    ("rights", "reads", "publishes"), [("read", True, False), ("publish", False, True), ("publish,read", True, True)]
)
def test_a_token_is_signed_with_the_first_secret_and_allows_what_was_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rights: str, reads: bool, publishes: bool
) -> None:
    assert show(configured(tmp_path), Wanted("7", rights, "15m")) == 0
    made = capsys.readouterr().out.strip().encode()
    expected: dict[Right, bool] = {"read": reads, "publish": publishes}
    for right, may in expected.items():
        checks = TokenAuthenticator(b"shared", right, Trust((SECRET.encode(),)))
        assert said(checks, made) == (7 if may else "not_allowed")
        checks.take_trust(Trust((FORMER.encode(),)))
        assert said(checks, made) == "bad_credential"


def test_a_user_may_be_text_and_presence_asks_for_the_same_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, key = configured(tmp_path), bytes.fromhex("5e" * 16)
    (tmp_path / "names.key").write_text("5e" * 16)
    config.write_text(f'{config.read_text()}names_file = "{tmp_path / "names.key"}"\n')
    assert show(config, Wanted("ann@example.org", "read", "15m")) == 0
    made = capsys.readouterr().out.strip().encode()
    checks = TokenAuthenticator(b"shared", "read", Trust((SECRET.encode(),), user_key=key))
    where = Target(config)
    assert said(checks, made) == user_of(where, "ann@example.org") >= HASHED
    assert user_of(where, "7") == 7
    for wrong in ("", " ann", "-7", "x" * 65):
        with pytest.raises(UserError, match="invalid user ") as told:
            user_of(where, wrong)
        assert told.value.exit_code == USAGE
    (tmp_path / "names.key").unlink()
    with pytest.raises(UserError, match=r"names\.key: cannot be read"):
        user_of(where, "ann")


def test_a_token_has_rights_by_room_and_an_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cap = ["sports:*=read,publish", "chat:7=read", "chat:a=b=members"]
    assert show(configured(tmp_path), Wanted("7", "read", "15m", cap, "first")) == 0
    made = capsys.readouterr().out.strip().encode()
    checks = TokenAuthenticator(b"shared", "read", Trust((SECRET.encode(),)))
    answer = checks.authenticate(made)
    assert isinstance(answer, Admitted)
    rooms = ("sports:final", "chat:7", "chat:8", "chat:a=b")
    assert [answer.grant.words(room) for room in rooms] == [["read", "publish"], ["read"], [], ["members"]]
    checks.take_trust(Trust((SECRET.encode(),), tokens=frozenset({"first"})))
    assert said(checks, made) == "bad_credential"


@pytest.mark.parametrize(
    ("cap", "words"),
    [
        (["sports:*"], "expected ROOMS=WORDS"),
        (["=read"], "expected ROOMS=WORDS"),
        (["sports:*=write"], "--cap: 'write'"),
        (["sp*rts=read"], "invalid pattern"),
        (["Sports:*=read"], "invalid pattern"),
        ([f"sports:{number:040}=read" for number in range(20)], r"1703 bytes \(limit 1000\)"),
    ],
)
def test_a_mistake_in_the_rights_of_rooms_is_one_line(tmp_path: Path, cap: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words) as told:
        show(configured(tmp_path), Wanted("7", "read", "1h", cap))
    assert told.value.exit_code == USAGE


def test_a_token_ends_when_it_was_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    checks = TokenAuthenticator(b"shared", "read", Trust((SECRET.encode(),)))
    for expires, ago_s, good in (("90s", 60, True), ("90s", 120, False), ("1h", 3_000, True), ("1d", 90_000, False)):
        monkeypatch.setattr("muster_server.control.cli.token.time.time", lambda ago_s=ago_s: now - ago_s)
        show(configured(tmp_path), Wanted("7", "read", expires))
        monkeypatch.undo()
        made = capsys.readouterr().out.strip().encode()
        assert said(checks, made) == (7 if good else "bad_credential"), expires


@pytest.mark.parametrize(
    ("user", "rights", "expires", "words"),
    [
        ("1", "read", "1h", "shared token"),
        ("0", "read", "1h", "decimal number from 2"),
        ("x" * 65, "read", "1h", "65 bytes .expected 1 to 64"),
        (str(1 << 64), "read", "1h", "decimal number from 2"),
        ("7", "write", "1h", "--rights: 'write'"),
        ("7", "", "1h", "--rights: ''"),
        ("7", "read", "0s", "--expires"),
        ("7", "read", "367d", "--expires"),
        ("7", "read", "1", "--expires"),
        ("7", "read", "-1h", "--expires"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, user: str, rights: str, expires: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as told:
        show(configured(tmp_path), Wanted(user, rights, expires))
    assert told.value.exit_code == USAGE


def test_without_a_good_secret_nothing_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (None, "", "short\n"):
        with pytest.raises(UserError, match=r"jwt\.secret") as told:
            show(configured(tmp_path, content), Wanted("7", "read", "1h"))
        assert told.value.exit_code == BAD_CONFIG
        (tmp_path / "jwt.secret").unlink(missing_ok=True)
    monkeypatch.setenv("MUSTER_INSTANCE__DIR", str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"jwt_secret_file.*muster up") as told:
        show(None, Wanted("7", "read", "1h"))
    assert told.value.exit_code in {BAD_CONFIG, UNAVAILABLE}


def test_a_token_says_to_whom_its_user_may_send(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = TokenAuthenticator(b"shared", "publish", Trust((SECRET.encode(),)), sends=[])
    for send, may in ((["8", "70*"], [True, True, False]), (["8,9"], [True, False, True]), (["*"], [True] * 3)):
        assert show(configured(tmp_path), Wanted("7", "read", "15m", send=send)) == 0
        answer = checks.authenticate(capsys.readouterr().out.strip().encode())
        assert isinstance(answer, Admitted)
        assert [answer.recipients.has(user) for user in (8, 705, 9)] == may, send
    assert show(configured(tmp_path), Wanted("7", "read", "15m", send=["ann,8"])) == 0
    for wrong in ("ann*", "7*7", "8,", "", " ann"):
        with pytest.raises(UserError, match="--send") as told:
            show(configured(tmp_path), Wanted("7", "read", "15m", send=[wrong]))
        assert told.value.exit_code == USAGE


def test_a_token_names_rooms_that_an_edge_subscribes_its_client_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = EdgeAuthenticator(b"shared", Trust((SECRET.encode(),)))
    wanted = Wanted("7", "read", "15m", cap=["a:*=read"], rooms=["a:b", "a:c"])
    assert show(configured(tmp_path), wanted) == 0
    answer = checks.authenticate(capsys.readouterr().out.strip().encode())
    assert isinstance(answer, Admitted)
    assert answer.rooms == ("a:b", "a:c")
    for wrong in (["a:"], [""], ["a:b"] * 65):
        with pytest.raises(UserError, match="--room") as told:
            show(configured(tmp_path), Wanted("7", "read", "15m", rooms=wrong))
        assert told.value.exit_code == USAGE
