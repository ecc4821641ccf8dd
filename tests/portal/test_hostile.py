"""Attacks by strangers: a session id of their own, forms of other sites, scripts in texts, guesses, foreign inboxes."""

import hashlib
import json
import re
import sqlite3
from base64 import urlsafe_b64decode
from collections.abc import Callable

import pytest

from tests.portal.conftest import Enter
from tests.portal.site import ANN, BO, Site, Visitor
from tests.waiting import PATIENT_S

Visit = Callable[..., Visitor]
SCRIPT = "<script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\">"


def test_a_session_id_from_before_the_login_opens_nothing(visitor: Visit) -> None:
    victim, thief = visitor(), visitor(1)
    planted = "planted-by-somebody-else-0123456789"
    victim.http.cookies.set("portal", planted, domain="127.0.0.1", path="/")
    token = victim.token("/login")
    answer = victim.http.post("/login", data={"csrf": token, "contact": BO, "password": "correct horse battery"})
    given = answer.cookies["portal"]
    assert answer.status_code == 303
    assert given != planted
    thief.http.cookies.set("portal", planted, domain="127.0.0.1", path="/")
    assert "Log out" not in thief.get("/").text
    line = next(each for each in answer.headers.get_list("set-cookie") if each.startswith("portal="))
    assert "httponly" in line.lower()
    assert "samesite=lax" in line.lower()


@pytest.mark.parametrize("csrf", ["", "0" * 64], ids=["none", "made up"])
def test_a_form_without_the_token_of_the_session_changes_nothing(visitor: Visit, csrf: str) -> None:
    bo = visitor()
    bo.login(BO)
    path = "/shares"
    answer = bo.send(path, csrf=csrf, title="Forged", text="forged", field="seeds", at="")
    assert answer.status_code == 403
    assert "Forged" not in bo.get("/").text


def test_a_form_of_another_site_changes_nothing_and_neither_does_the_token_of_another_member(visitor: Visit) -> None:
    ann, bo = visitor(), visitor(1)
    ann.login(ANN)
    bo.login(BO)
    fields = {"title": "Forged", "text": "forged", "field": "seeds", "at": ""}
    assert bo.send("/shares", "https://evil.example", **fields).status_code == 403
    assert bo.send("/shares", csrf=ann.token(), **fields).status_code == 403
    assert bo.send("/shares", str(bo.http.base_url).rstrip("/"), **fields).status_code == 303
    assert "Forged" in bo.get("/").text  # the same form with all that it needs


def test_texts_are_shown_and_never_run(enter: Enter, visitor: Visit) -> None:
    ann, bo = enter(ANN), visitor(1)
    path = ann.share(SCRIPT[:100], SCRIPT)
    ann.go(path)
    bo.login(BO)
    assert bo.send(f"{path}/replies", text=SCRIPT).status_code == 303
    reply = ann.page.locator("#replies li")
    reply.wait_for()  # it came through the room
    assert SCRIPT in reply.inner_text()
    ann.go("/inbox")
    ann.go("/")
    assert "stolen" not in ann.page.title()
    policy = bo.get("/").headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy


def test_nobody_learns_which_addresses_have_accounts(visitor: Visit, site: Site) -> None:
    stranger = visitor()
    fields = {"name": "Eve", "password": "a long password", "kind": "person"}
    pages = []
    for email in ANN, "nobody@example.org":
        answer = stranger.send("/register", contact=email, **fields)
        page = answer.text.replace(email, "EMAIL")
        pages.append((answer.status_code, re.sub(r'"registration" value="\w+"', "", page)))
        assert site.mail(email)
    assert pages[0] == pages[1]
    wrong = [stranger.login(email, "a wrong password") for email in (ANN, "nobody2@example.org")]
    texts = [re.sub(r'value="[^"]*@example.org"', "", answer.text) for answer in wrong]
    assert [answer.status_code for answer in wrong] == [400, 400]
    assert texts[0] == texts[1]


def test_guesses_are_bounded(visitor: Visit, site: Site) -> None:
    stranger = visitor()
    said = []
    for at in range(7):
        stranger.http.headers["x-forwarded-for"] = f"203.0.113.{at}"  # no front asks for it, so its word counts nothing
        said.append(stranger.login("guess@example.org", f"wrong {at}").status_code)
    assert said == [400] * 5 + [429] * 2
    fields = {"name": "Guess", "password": "a long password", "kind": "person"}
    page = stranger.send("/register", contact="guess@example.org", **fields).text
    registration = re.search(r'name="registration" value="(\w+)"', page)
    assert registration is not None
    code = re.search(r"\d{6}", site.mail("guess@example.org"))
    assert code is not None
    wrong = f"{(int(code[0]) + 1) % 10**6:06}"
    for _ in range(5):
        assert stranger.send("/register/code", registration=registration[1], code=wrong).status_code == 400
    right = stranger.send("/register/code", registration=registration[1], code=code[0])
    assert right.status_code == 400
    assert "not good any more" in right.text


def test_members_reach_what_is_theirs_alone(visitor: Visit) -> None:
    ann, bo, stranger = visitor(), visitor(1), visitor()
    ann.login(ANN)
    bo.login(BO)
    for path in "/inbox", "/letters", "/people", "/staff", "/write":
        answer = stranger.get(path)
        assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/login")
    assert ann.get("/staff").status_code == 404
    assert ann.send("/staff/broadcast", text="hello all").status_code == 404
    path = bo.send("/shares", title="Of Bo", text="by Bo", field="seeds", at="3600").headers["location"]
    assert ann.get(path).status_code == 404
    for verb in "cancel", "edit":
        assert ann.send(f"{path}/{verb}", text="by Ann").status_code in {400, 404}
    assert "by Bo" in bo.get(path).text
    bo.send(f"{path}/cancel")
    for each, others in (ann, bo), (bo, ann):
        said = claims(each.get("/token").json()["token"])
        assert said["cap"].keys() - claims(stranger.get("/token").json()["token"])["cap"].keys() == {
            room for room in said["cap"] if room.startswith("session:")
        }
        assert all("publish" not in rights for rights in said["cap"].values())
        assert said["sub"] != claims(others.get("/token").json()["token"])["sub"]


def claims(token: str) -> dict[str, dict[str, list[str]]]:
    """The claims of a token."""
    part = token.split(".")[1]
    said: dict[str, dict[str, list[str]]] = json.loads(unpadded(part))
    return said


def unpadded(part: str) -> bytes:
    """The bytes of a part of a token."""
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_a_session_ends_by_its_time(visitor: Visit, site: Site) -> None:
    ((ann,),) = site.rows("portal", f"SELECT id FROM accounts WHERE contact = '{ANN}'")
    for name, ends_at in ("over-before-it-was-seen-0123456789", 1.0), ("open-until-the-year-2100-0123456789", 4.1e9):
        digest = hashlib.sha256(name.encode()).hexdigest()
        with sqlite3.connect(site.folder / "portal.db", timeout=PATIENT_S) as database:
            database.execute(
                "INSERT INTO sessions (digest, account, ends_at, ended, address) VALUES (?, ?, ?, '', '')",
                (digest, ann, ends_at),
            )
        reader = visitor()
        reader.http.cookies.set("portal", name, domain="127.0.0.1", path="/")
        assert ("Log out" in reader.get("/").text) == (ends_at > 2.0)


def test_a_code_makes_one_account_and_is_no_good_after_that(visitor: Visit, site: Site) -> None:
    stranger = visitor()
    fields = {"name": "Once", "password": "a long password", "kind": "person"}
    page = stranger.send("/register", contact="once@example.org", **fields).text
    registration = re.search(r'name="registration" value="(\w+)"', page)
    assert registration is not None
    code = re.search(r"\d{6}", site.mail("once@example.org"))
    assert code is not None
    codes = [
        each.send("/register/code", registration=registration[1], code=code[0]).status_code
        for each in (stranger, visitor(1))
    ]
    assert codes == [303, 400]
