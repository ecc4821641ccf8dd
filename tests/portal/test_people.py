"""Two people at once in browsers, at two web servers: what each does, the other sees."""

import os
import re
import signal

from playwright.sync_api import expect

from tests.portal.conftest import Enter
from tests.portal.site import ANN, BO, STAFF, Person, Site, Visitor
from tests.waiting import wait_for


def bell(person: Person) -> None:
    expect(person.page.locator("#bell .count")).to_be_visible()


def shows(reader: Visitor, path: str, text: str) -> None:
    """Wait until a page has this text."""
    wait_for(lambda: text in reader.get(path).text, text)


def test_a_share_is_read_liked_and_answered_without_a_reload(enter: Enter) -> None:
    ann, bo = enter(ANN), enter(BO, server=1)
    bo.go("/")
    path = ann.share("Beans in rows", "Forty centimetres apart.")
    link = bo.page.get_by_role("link", name="Beans in rows")
    expect(link).to_be_visible()  # no reload
    ann.go(path)
    link.click()
    expect(bo.page.locator("#live")).to_have_attribute("data-state", "on")
    bo.page.get_by_role("button", name="Like").click()
    expect(bo.page.locator("#like-share .count")).to_have_text("1")
    expect(ann.page.locator("#like-share .count")).to_have_text("1")
    bell(ann)
    bo.page.get_by_label("Reply").fill("And in clay?")
    bo.page.get_by_role("button", name="Send").click()
    for each in ann, bo:
        expect(each.page.locator("#replies li")).to_have_text([re.compile("And in clay?")])
    expect(bo.page.get_by_label("Reply")).to_have_value("")
    bo.page.get_by_role("button", name="Keep").click()
    expect(bo.page.locator("#like-favourite button")).to_have_attribute("aria-pressed", "true")
    expect(bo.go("/people").locator("#kept")).to_contain_text("Beans in rows")
    expect(bo.go("/").locator("#top")).to_contain_text("Beans in rows")
    expect(bo.page.locator("#online")).to_contain_text("Ann")
    wait_for(lambda: "Bo replies to “Beans in rows”" in ann.go("/inbox").inner_text("#entries"), "the notice")
    ann.page.get_by_role("button", name="Mark all as read").click()
    expect(ann.page.locator("#entries .unread")).to_have_count(0)


def test_an_edit_shows_at_every_server_at_once(enter: Enter, site: Site) -> None:
    ann = enter(ANN)
    path = ann.share("Soil", "version 0")
    readers = [site.visitor(server) for server in range(2)]
    for reader in readers:
        assert "version 0" in reader.get(path).text
    for version in range(1, 4):
        ann.go(path).get_by_text("Edit").click()
        ann.page.get_by_label("Text").fill(f"version {version}")
        with ann.page.expect_navigation():
            ann.page.get_by_role("button", name="Save").click()
        assert f"version {version}" in ann.page.inner_text(".text")
        for reader in readers:
            shows(reader, path, f"version {version}")
    for reader in readers:
        reader.close()


def test_a_share_is_published_at_its_time_and_a_cancelled_one_never(enter: Enter) -> None:
    ann, bo = enter(ANN), enter(BO, server=1)
    bo.go("/")
    cancelled = ann.share("Never shown", "Not yet right.", at="10")
    ann.page.get_by_role("button", name="Cancel").click()
    expect(ann.page.locator("#waiting")).to_have_text("Cancelled.")
    ann.share("Shown in time", "At its time.", at="10")
    expect(ann.page.locator("#waiting")).to_contain_text("Waits until")
    expect(bo.page.get_by_role("link", name="Shown in time")).to_be_visible()
    # It was due before the other one, and was not shown.
    expect(bo.page.get_by_role("link", name="Never shown")).to_have_count(0)
    assert bo.page.goto(bo.origin + cancelled) is not None
    expect(bo.page.locator("#error")).to_have_text("There is nothing here.")
    bo.troubles = [each for each in bo.troubles if "404" not in each]


def test_a_login_elsewhere_ends_the_session_and_says_so(enter: Enter) -> None:
    first = enter(BO)
    first.go("/people")
    enter(BO, server=1)
    first.page.wait_for_url(re.compile("/login"))
    expect(first.page.locator("#ended")).to_contain_text("logged in elsewhere")


def test_letters_are_read_on_both_sides(site: Site) -> None:
    ann, bo = site.visitor(), site.visitor(1)
    ann.login(ANN)
    bo.login(BO)
    people = ann.get("/people").text
    numbers = {name: re.search(rf'href="(/people/(\d+))">{name}<', people) for name in ("Ann", "Bo")}
    assert numbers["Ann"]
    assert numbers["Bo"]
    to_bo, to_ann = f"/letters/{numbers['Bo'][2]}", f"/letters/{numbers['Ann'][2]}"
    assert ann.send(to_bo, text="Do you have seeds left?").status_code == 303
    assert "not read yet" in ann.get(to_bo).text
    shows(bo, "/inbox", "A letter from Ann")
    assert "Ann</a> (1 unread)" in bo.get("/letters").text
    assert "Do you have seeds left?" in bo.get(to_ann).text
    assert "· read<" in ann.get(to_bo).text
    assert "unread)" not in bo.get("/letters").text
    assert 'class="unread"' not in bo.get("/inbox").text.partition("A letter from Ann")[0].rpartition("<li")[2]
    ann.close()
    bo.close()


def test_following_twice_is_following_once_and_news_end_with_it(site: Site) -> None:
    ann, bo = site.visitor(), site.visitor(1)
    ann.login(ANN)
    bo.login(BO)
    found = re.search(r'href="(/people/(\d+))">Ann<', bo.get("/people").text)
    assert found is not None
    for _ in range(2):
        assert bo.send("/follows", target=f"user:{found[2]}", follows="yes").status_code == 303
    shows(ann, "/inbox", "Bo follows you")
    assert ann.get("/inbox").text.count("Bo follows you") == 1
    assert len(site.rows("portal", f"SELECT account FROM follows WHERE target = 'user:{found[2]}'")) == 1
    fields = {"text": "news", "field": "seeds", "at": ""}
    assert ann.send("/shares", title="While Bo follows", **fields).status_code == 303
    shows(bo, "/inbox", "While Bo follows")
    assert bo.send("/follows", target=f"user:{found[2]}", follows="no").status_code == 303
    assert ann.send("/shares", title="After that", **fields).status_code == 303
    path = ann.send("/shares", title="And this", **fields).headers["location"]
    assert bo.send(f"{path}/replies", text="seen").status_code == 303
    shows(ann, "/inbox", "And this")  # the worker has done what came before it
    assert "After that" not in bo.get("/inbox").text
    for target in "user:1", "field:stones", "user:x", f"user:{found[2]}0":
        assert bo.send("/follows", target=target, follows="yes").status_code == 404
    ann.close()
    bo.close()


def test_a_department_writes_once_staff_has_checked_it(enter: Enter, site: Site) -> None:
    staff, new = enter(STAFF), Visitor(site.origins[1])
    fields = {"name": "Soil office", "password": "a long password", "department": "Soil", "head": "Dr Lin"}
    answer = new.send("/register", contact="soil@example.org", kind="department", **fields)
    registration = re.search(r'name="registration" value="(\w+)"', answer.text)
    assert registration is not None, answer.text
    code = re.search(r"\d{6}", site.mail("soil@example.org"))
    assert code is not None
    assert new.send("/register/code", registration=registration[1], code=code[0]).status_code == 303
    assert new.get("/write").status_code == 403
    staff.go("/staff").locator("#checks").get_by_role("button", name="Let in").click()
    expect(staff.page.locator("#checks")).to_contain_text("none")
    wait_for(lambda: new.get("/write").status_code == 200, "the check")
    assert "your department is checked" in new.get("/inbox").text.lower()
    new.close()


def test_a_broadcast_reaches_open_pages(enter: Enter) -> None:
    bo, staff = enter(BO, server=1), enter(STAFF)
    bo.go("/inbox")
    if bo.page.get_by_role("button", name="Mark all").count():
        bo.page.get_by_role("button", name="Mark all").click()
        bo.go("/inbox")
    expect(bo.page.locator("#bell .count")).to_have_count(0)
    staff.go("/staff").get_by_label("Text").fill("The portal moves on Sunday.")
    staff.page.get_by_role("button", name="Tell all").click()
    bell(bo)  # no reload
    expect(bo.go("/inbox").locator("#entries")).to_contain_text("The portal moves on Sunday.")


def test_what_is_not_read_is_mailed_and_what_is_read_is_not(enter: Enter, site: Site) -> None:
    bo = enter(BO)
    bo.go("/inbox").locator("[name=mail-reply]").select_option("unless_read")
    bo.page.get_by_role("button", name="Save").click()
    expect(bo.page.locator("[name=mail-reply]")).to_have_value("unless_read")
    paths = [bo.share("Read in time", "…and more"), bo.share("Not read", "…and more")]
    ann = site.visitor()
    ann.login(ANN)
    assert ann.send(f"{paths[0]}/replies", text="one").status_code == 303
    wait_for(lambda: "Read in time" in bo.go("/inbox").inner_text("#entries"), "the notice")
    bo.page.get_by_role("button", name="Mark all").click()
    expect(bo.page.locator("#entries .unread")).to_have_count(0)
    assert ann.send(f"{paths[1]}/replies", text="two").status_code == 303
    assert "Not read" in site.mail(BO, lambda text: "replies" in text)
    assert not any("Read in time" in text for text in site.mails(BO))
    ann.close()


def test_a_session_survives_the_death_of_its_server(enter: Enter, site: Site) -> None:
    bo = enter(BO)
    pid = site.child("portal.web")
    os.kill(pid, signal.SIGKILL)
    other = bo.context.new_page()
    for origin in reversed(site.origins):  # the server that died is started again on the same socket
        other.goto(origin + "/")
        expect(other.get_by_role("button", name="Log out")).to_be_visible()


def test_pages_are_read_without_javascript(enter: Enter) -> None:
    ann = enter(ANN)
    path = ann.share("Plain", "Read me.")
    context = ann.context.browser.new_context(java_script_enabled=False) if ann.context.browser else None
    assert context is not None
    page = context.new_page()
    page.goto(ann.origin + "/")
    page.get_by_role("link", name="Plain").first.click()
    expect(page.locator(".text").first).to_have_text("Read me.")
    assert page.url.endswith(path)
    context.close()
