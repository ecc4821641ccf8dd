"""The entry of the console against strangers: logins, sessions, forged requests, roles, and the audit log."""

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from muster_server.control.errors import UserError
from muster_server.plane.trust import Trust
from muster_server.systems.console import logins
from muster_server.systems.console.attempts import FORGET_S, FREE, LONGEST_S, Attempts
from muster_server.systems.console.audit import ASIDE, FILE, Audit, Entry
from muster_server.systems.console.sessions import SESSIONS_MAX, Sessions
from muster_server.systems.console.users import line_of, matches, user, users
from tests.console.conftest import Make
from tests.console.served import PASSWORDS, SECRET, SESSION, USERS, Served

KEYS = "/api/v1/console/keys"
NEW = {"name": "web", "scopes": ["read:*"]}


# --- users and one-time logins --------------------------------------------------------------------------------------


def test_a_password_is_known_by_its_argon2id_hash_alone() -> None:
    known = user(line_of("ann", "operator", "correct horse"))
    assert known.phc.startswith("$argon2id$v=19$")
    assert "correct horse" not in known.phc
    assert matches(known, "correct horse")
    assert not matches(known, "correct hors")
    assert not matches(None, "correct horse")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "invalid name"),
        ("ann:root:x", "invalid role"),
        ("ann:viewer:password", "is not argon2id"),
        ("ann:viewer:$argon2id$v=19$m=9999999,t=1,p=1$YWFhYWFhYWE$YWFhYQ", "needs 9999999 KiB"),
    ],
)
def test_a_wrong_line_of_a_user_is_named(line: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        user(line)


def test_two_lines_for_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="second line"):
        users((USERS[0], USERS[0]))


def test_a_one_time_login_is_good_once(tmp_path: Path) -> None:
    code = logins.create(tmp_path, "viewer", 60)
    assert code not in "".join(each.read_text() + each.name for each in (tmp_path / logins.FOLDER).iterdir())
    assert logins.use(tmp_path, code) == "viewer"
    assert logins.use(tmp_path, code) is None
    assert logins.use(tmp_path, logins.create(tmp_path, "operator", -1)) is None
    assert logins.use(tmp_path, "../../etc/passwd") is None


def test_unused_one_time_logins_are_bounded(tmp_path: Path) -> None:
    for _ in range(logins.KEPT_MAX + 5):
        logins.create(tmp_path, "viewer", 60)
    assert len(list((tmp_path / logins.FOLDER).iterdir())) == logins.KEPT_MAX


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / logins.FOLDER).write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        logins.create(tmp_path, "viewer", 60)


# --- failures and sessions in virtual time ----------------------------------------------------------------------------


def test_each_further_failure_waits_longer() -> None:
    attempts, now = Attempts(), 0.0
    for _ in range(FREE):
        assert attempts.wait("ann", now) == 0
        attempts.failed("ann", now)
    waits = []
    for _ in range(12):
        waits.append(attempts.wait("ann", now))
        now += waits[-1]
        assert attempts.wait("ann", now) == 0
        attempts.failed("ann", now)
    assert waits[:4] == [1, 2, 4, 8]
    assert max(waits) == LONGEST_S
    assert attempts.wait("bob", now) == 0
    assert attempts.wait("ann", now + FORGET_S + 1) == 0


def test_sessions_end_when_idle_and_when_old() -> None:
    sessions = Sessions(1_000, 100)
    one = sessions.begin("ann", "operator", "link", "", 0)
    assert sessions.find(one.id, 99) is one
    assert sessions.find(one.id, 200) is None
    two = sessions.begin("ann", "operator", "link", "", 0)
    two.on_end.add(lambda: None)  # an open page keeps it
    assert sessions.find(two.id, 900) is two
    assert sessions.find(two.id, 1_001) is None
    assert two.over


def test_sessions_are_bounded() -> None:
    sessions = Sessions(1_000, 1_000)
    first = sessions.begin("ann", "viewer", "link", "", 0)
    for _ in range(SESSIONS_MAX):
        sessions.begin("bob", "viewer", "link", "", 0)
    assert len(sessions) == SESSIONS_MAX
    assert first.over


# --- logins over HTTP ---------------------------------------------------------------------------------------------------


async def test_nothing_is_answered_without_a_login(served: Served) -> None:
    stranger = served.browser()
    for path in ("/overview", "/nodes", "/keys", "/audit", "/events", "/doctor", "/topology", "/history"):
        assert (await stranger.ask("GET", f"/api/v1/console{path}")).status_code == 401, path
    for path in ("/rooms", "/topics", "/fleet/clients", "/ranks"):
        assert (await stranger.ask("GET", f"/api/v1{path}")).status_code == 401, path
    with_key = await stranger.ask("GET", "/api/v1/rooms", headers={"x-api-key": served.key("rooms:*")})
    assert with_key.status_code == 401  # keys are for the HTTP face


async def test_a_login_sets_a_cookie_that_no_script_and_no_other_site_gets(served: Served) -> None:
    answer = await served.browser().login("ann", PASSWORDS["ann"])
    line = answer.headers["set-cookie"].lower()
    assert {"httponly", "secure", "samesite=strict", "path=/"} <= {each.strip() for each in line.split(";")}
    assert answer.json()["role"] == "operator"


@pytest.mark.parametrize("password", ["", "battery staple", "correct horsE", "x" * 1_024])
async def test_a_wrong_password_is_refused(served: Served, password: str) -> None:
    answer = await served.browser().login("ann", password)
    assert (answer.status_code, answer.json()["code"]) == (401, "bad_credential")


async def test_a_guesser_is_slowed_down_and_the_right_password_waits_too(served: Served) -> None:
    served.entry.clock = lambda: 0.0
    guesser = served.browser()
    codes = [(await guesser.login("ann", f"guess {number}")).status_code for number in range(2 * FREE)]
    assert codes == [401] * FREE + [429] * FREE
    refused = await guesser.login("ann", PASSWORDS["ann"])
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1


async def test_a_session_that_existed_before_a_login_never_becomes_that_of_the_login(served: Served) -> None:
    fixed = served.browser()
    fixed.cookie = f"{served.entry.cookie}=chosen-by-a-stranger"
    await fixed.login("bob", PASSWORDS["bob"])
    assert "chosen-by-a-stranger" not in fixed.cookie
    before = fixed.cookie
    await fixed.login("ann", PASSWORDS["ann"])
    assert fixed.cookie != before
    old = served.browser()
    old.cookie = before
    assert (await old.ask("GET", SESSION)).status_code == 401


async def test_a_one_time_link_logs_in_once_under_its_role(served: Served) -> None:
    code = logins.create(served.folder, "viewer", 60)
    first, second = served.browser(), served.browser()
    assert (await first.login(code=code)).json()["role"] == "viewer"
    assert (await second.login(code=code)).status_code == 401


async def test_a_key_with_the_scope_console_logs_in_until_it_is_revoked(served: Served) -> None:
    secret = served.key("console:viewer")
    mine = served.browser()
    assert (await mine.login(key=secret)).json()["role"] == "viewer"
    assert (await mine.ask("GET", SESSION)).json()["user"] == "key key"
    assert (await served.browser().login(key=served.key("read:*", name="other"))).status_code == 401
    operator = await served.logged_in()
    assert (await operator.ask("DELETE", f"{KEYS}/key")).status_code == 200
    served.face.reload(Trust((SECRET,)))
    assert (await mine.ask("GET", SESSION)).status_code == 401


async def test_a_user_who_is_removed_loses_the_session(served: Served) -> None:
    mine = await served.logged_in("bob")
    served.entry.take(replace(served.entry.options, users=USERS[:1]))
    assert (await mine.ask("GET", SESSION)).status_code == 401


async def test_a_proxys_header_counts_only_from_the_proxy(make: Make) -> None:
    trusting = await make(proxy_header="X-Forwarded-User")
    named = trusting.browser(**{"x-forwarded-user": "carol"})
    session = await named.ask("GET", SESSION)
    assert (session.json()["user"], session.json()["role"]) == ("carol", "viewer")
    changed = trusting.browser(**{"x-forwarded-user": "ann"})
    changed.cookie = named.cookie  # another user of the proxy does not inherit the session
    assert (await changed.ask("GET", SESSION)).json()["user"] == "ann"
    assert (await trusting.browser().ask("GET", SESSION)).status_code == 401


async def test_a_strangers_header_is_ignored(make: Make) -> None:
    apart = await make(proxy_header="X-Forwarded-User", proxy_addresses=("192.0.2.1",))
    assert (await apart.browser(**{"x-forwarded-user": "ann"}).ask("GET", SESSION)).status_code == 401


async def test_logout_ends_the_session(served: Served) -> None:
    mine = await served.logged_in()
    before = mine.cookie
    assert (await mine.ask("DELETE", SESSION)).status_code == 200
    mine.cookie = before
    assert (await mine.ask("GET", KEYS)).status_code == 401


# --- forged requests, roles, headers ------------------------------------------------------------------------------------


async def test_a_request_without_the_token_of_its_session_changes_nothing(served: Served) -> None:
    mine, other = await served.logged_in(), await served.logged_in()
    for token in ("", "wrong", other.token):
        assert (await mine.ask("POST", KEYS, token=token, json=NEW)).status_code == 403
    assert not served.keys_file.exists()
    assert (await mine.ask("POST", KEYS, json=NEW)).status_code == 201


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}]
)
async def test_another_sites_page_can_do_nothing(served: Served, headers: dict[str, str]) -> None:
    mine = await served.logged_in()
    assert (await mine.ask("POST", KEYS, json=NEW, headers=headers)).status_code == 403
    login = await served.browser().ask("POST", SESSION, json={"name": "ann", "password": "x"}, headers=headers)
    assert login.status_code == 403
    assert not served.keys_file.exists()


async def test_a_form_of_another_site_cannot_log_in(served: Served) -> None:
    body = json.dumps({"name": "ann", "password": PASSWORDS["ann"]})
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = await served.browser().ask("POST", SESSION, content=body, headers={"content-type": kind})
        assert answer.status_code == 415


async def test_a_viewer_sees_and_an_operator_acts(served: Served) -> None:
    viewer = await served.logged_in("bob")
    assert (await viewer.ask("GET", KEYS)).status_code == 200
    asked = {"POST": f"{KEYS}", "DELETE": f"{KEYS}/web", "PUT": "/api/v1/fleet/tasks/x", "PATCH": "/api/v1/topics/x"}
    for method, path in asked.items():
        answer = await viewer.ask(method, path, json=NEW)
        assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed"), path
    for path in ("/api/v1/rooms/a/messages", "/api/v1/send", "/api/v1/fleet/runs", "/api/v1/console/topology/nodes"):
        assert (await viewer.ask("POST", path, json={})).status_code == 403, path
    looked = await viewer.ask("POST", "/api/v1/presence", json={"users": ["7"]})  # a question, not an action
    assert looked.status_code == 503


@pytest.mark.parametrize("path", ["/", "/assets/app.js", "/api/v1/console/keys", "/api/v1/nothing", SESSION])
async def test_no_page_can_be_framed_or_run_foreign_scripts(served: Served, path: str) -> None:
    headers = (await served.browser().ask("GET", path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")


async def test_only_files_of_the_package_are_served(served: Served) -> None:
    stranger = served.browser()
    assert (await stranger.ask("GET", "/assets/vendor/preact.js")).status_code == 200
    for path in ("/assets/../options.py", "/assets/%2e%2e/options.py", "/assets/vendor", "/assets//etc/passwd"):
        assert (await stranger.ask("GET", path)).status_code in {401, 404}, path


# --- the audit log --------------------------------------------------------------------------------------------------------


async def test_each_action_is_in_the_log_with_its_result(served: Served) -> None:
    mine = await served.logged_in()
    await mine.ask("POST", KEYS, json=NEW)
    await mine.ask("DELETE", f"{KEYS}/nobody")
    rows = (await mine.ask("GET", "/api/v1/console/audit")).json()["rows"]
    assert [(each["user"], each["action"], each["detail"], each["status"]) for each in rows] == [
        ("ann", f"DELETE {KEYS}/nobody", "", 404),
        ("ann", f"POST {KEYS}", "web: read:*", 201),
        ("ann", "login", "password", 200),
    ]
    text = (served.folder / FILE).read_text()
    assert "mk_" not in text


async def test_an_action_that_cannot_be_logged_does_not_happen(served: Served) -> None:
    mine = await served.logged_in()
    (served.folder / FILE).unlink()
    (served.folder / FILE).mkdir()
    answer = await mine.ask("POST", KEYS, json=NEW)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert not served.keys_file.exists()


def test_the_log_survives_a_torn_line_and_is_bounded(tmp_path: Path) -> None:
    audit = Audit(tmp_path, 65_536)
    for number in range(1_000):
        audit.write(Entry(id=f"{number}", at=number, what="begins", user="ann", action=f"POST /{number}"))
    with (tmp_path / FILE).open("ab") as torn:
        torn.write(b'{"id": "torn"\n')
    assert (tmp_path / FILE).stat().st_size <= 65_536 + 20
    assert (tmp_path / (FILE + ASIDE)).exists()
    assert os.stat(tmp_path / FILE).st_mode & 0o077 == 0
    rows, more = audit.read("", 0, 10)
    assert [each.id for each in rows] == [str(number) for number in range(999, 989, -1)]
    assert more
    assert [each.status for each in audit.read("POST /999", 0, 10)[0]] == [0]  # no second line: it was cut off


async def test_open_pages_end_with_their_session_and_are_bounded(make: Make) -> None:
    served = await make(pages_max=1)
    mine = await served.logged_in()
    async with mine.http.stream("GET", "/api/v1/console/events", headers={"cookie": mine.cookie}) as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == "retry: 1000"
        async with mine.http.stream("GET", "/api/v1/console/events", headers={"cookie": mine.cookie}) as second:
            assert second.status_code == 503
        assert (await mine.ask("DELETE", SESSION)).status_code == 200
        rest = [line async for line in lines]
    assert any('"reason":"revoked"' in line for line in rest)
