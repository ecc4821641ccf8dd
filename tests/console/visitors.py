"""People in browsers of their own at the pages of a console, and what tests of pages share."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from playwright.sync_api import Browser, ConsoleMessage, Page, Response, expect

from tests.console.served import PASSWORDS
from tests.faults.instance import Instance
from tests.waiting import PATIENT_S

PICTURES: Final = os.environ.get("MUSTERTEST_PICTURES", "")
"""A folder for pictures of the pages, for docs."""
WIDTH, HEIGHT = 1_280, 860
PICTURED: Final[tuple[tuple[Literal["dark", "light"], str], ...]] = (("dark", "-dark"), ("light", ""))
"""The looks in which a page is pictured, with the ending of the file."""

expect.set_options(timeout=PATIENT_S * 1_000)


class Visitor:
    """One person in a browser of its own. `close` fails if the page reported an error or asked another host."""

    def __init__(self, url: str, browser: Browser, name: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, locale="en-GB", **options)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENT_S * 1_000)
        self.troubles: list[str] = []
        self._answers: list[Response] = []
        """Answers with a status of 500 and above."""
        self.forgives = re.compile(r"Failed to load resource.* 40[13]")
        """A page asks first whether there is a session."""
        self.expects: re.Pattern[str] | None = None
        """Paths that may answer with such a status: their system does not run."""
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: self.troubles.append(f"a dialog: {dialog.message}"))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("response", lambda response: self._answers.append(response) if response.status >= 500 else None)
        self.page.goto(url)
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_label("Password").fill(PASSWORDS[name])
        self.page.get_by_role("button", name="Log in").click()
        expect(self.page.get_by_role("navigation")).to_be_visible()

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not self.forgives.search(message.text):
            self.troubles.append(message.text)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.url, "data:")):
            self.troubles.append(f"asked {url}")

    def go(self, place: str) -> Page:
        """Open a page of the console."""
        self.page.goto(f"{self.url}/#/{place}")
        expect(self.page.get_by_role("heading", level=1)).to_be_visible()
        return self.page

    def act(self, title: str, *, label: str = "", **fields: str) -> str:
        """Open the form of an action, fill it, send it, and return what the page tells."""
        self.page.get_by_role("button", name=title, exact=True).first.click()
        dialog = self.page.get_by_role("dialog", name=title, exact=True)
        for name, value in fields.items():
            field = dialog.locator(f"[name='{name}']")
            if field.evaluate("each => each.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        dialog.locator("button[type=submit]").click()
        told = dialog.locator(".notice")
        expect(told).to_be_visible()
        text = told.inner_text()
        assert "fail" not in (told.get_attribute("class") or ""), text
        dialog.get_by_role("button", name="Close").click()
        return text

    def close(self) -> None:
        """Leave."""
        unexpected = [each for each in self._answers if self.expects is None or not self.expects.search(each.url)]
        self.troubles += [f"{each.url}: {each.text()}" for each in unexpected]
        self.context.close()
        assert not self.troubles, "\n".join(self.troubles)


def picture(visitor: Visitor, name: str, heading: str = "") -> None:
    """Keep a picture of the page for docs, light and dark, if that is wanted; from this heading on."""
    if PICTURES:
        visitor.page.mouse.move(0, 0)
        for look, ending in PICTURED:
            visitor.page.emulate_media(color_scheme=look)
            visitor.page.evaluate("scrollTo(0, 0)")
            if heading:
                place = visitor.page.get_by_role("heading", name=heading)
                place.evaluate("each => each.closest('section').scrollIntoView()")
            visitor.page.screenshot(path=Path(PICTURES) / f"console-{name}{ending}.png")


@contextlib.contextmanager
def background(instance: Instance, *words: str) -> Iterator[None]:
    """A command beside the test."""
    process = instance.command(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENT_S)
