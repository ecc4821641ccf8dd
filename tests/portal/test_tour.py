"""The pages of the tour in `examples/portal/README.md`: accessible, also on a phone, and pictured; and the staff's page."""

import os
from pathlib import Path
from typing import Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from muster.messages import Messages
from tests.portal.conftest import Enter
from tests.portal.site import ANN, BO, STAFF, Person, Site
from tests.waiting import wait_for

PICTURES: Final = os.environ.get("MUSTERTEST_PICTURES", "")
"""A folder for pictures of the pages."""
WIDTH, HEIGHT = 1_000, 720
PHONE: Final = 360


def pictured(person: Person, name: str) -> None:
    """Keep a picture of the page, if that is wanted."""
    if PICTURES:
        person.page.screenshot(path=Path(PICTURES) / f"{name}.png")


def is_open_to_all(person: Person, path: str) -> None:
    """No serious finding of axe, and nothing to scroll sideways on a phone."""
    page = person.go(path)
    found = Axe().run(page).response["violations"]
    assert [each["nodes"][0]["html"] for each in found if each["impact"] in {"serious", "critical"}] == [], path
    page.set_viewport_size({"width": PHONE, "height": HEIGHT})
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE, path
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


def died(site: Site, id: str) -> list[int]:
    """When the task failed for good, if it has."""
    letters = site.asked("/api/v1/topics/mail/dead?limit=20")["letters"]
    return [each["died_at"] for each in letters if each["message"]["id"] == id]


@pytest.mark.usefixtures("site")
def test_pages_of_the_tour_keep_nobody_out(enter: Enter) -> None:
    ann, bo = (enter(email, viewport={"width": WIDTH, "height": HEIGHT}) for email in (ANN, BO))
    path = ann.share("Clover between the rows", "It keeps the soil moist, and it feeds the beans.")
    bo.go(path)
    bo.page.get_by_role("button", name="Like").click()
    expect(bo.page.locator("#like-share .count")).to_have_text("1")
    bo.page.get_by_label("Reply").fill("Does it climb the poles?")
    bo.page.get_by_role("button", name="Send").click()
    expect(bo.page.locator("#replies li")).to_have_count(1)
    pictured(bo, "share")
    wait_for(lambda: "Bo replies" in ann.go("/inbox").inner_text("#entries"), "the notice")
    pictured(ann, "notices")
    bo.go("/")
    expect(bo.page.locator("#online")).to_contain_text("Ann")
    pictured(bo, "front")
    unbroken = ann.share("compost" * 14, "manure" * 50)
    for each in ("/", path, unbroken, "/write", "/people", "/letters", "/orders", "/inbox"):
        is_open_to_all(ann, each)


def test_staff_has_a_task_that_failed_for_good_tried_again(enter: Enter, site: Site) -> None:
    staff = enter(STAFF, viewport={"width": WIDTH, "height": HEIGHT})
    with Messages(site.settings["http_url"], key=site.settings["key"]) as messages:
        sent = messages.send("mail", {"no": "such argument"})
    failed = staff.page.locator("#dead li", has_text=sent.id)
    wait_for(lambda: staff.go("/staff").locator("#dead li", has_text=sent.id).count(), "the dead letter")
    pictured(staff, "staff")
    is_open_to_all(staff, "/staff")
    expect(failed).to_contain_text("missing a required argument")
    (first,) = died(site, sent.id)
    failed.get_by_role("button", name="Try again").click()
    wait_for(lambda: died(site, sent.id) not in ([], [first]), "it has failed again")
