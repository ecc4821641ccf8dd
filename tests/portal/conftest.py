"""A portal and a browser, shared by the tests of this folder."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.portal.site import Person, Site, Visitor, running

Enter = Callable[..., Person]


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A running portal."""
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on this machine")
    folder: Path = tmp_path_factory.mktemp("portal")
    with running(folder) as made:
        yield made


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def enter(site: Site, chromium: Browser) -> Iterator[Enter]:
    """Open browsers of people; each must end without an error."""
    people: list[Person] = []

    def entered(email: str, server: int = 0, **options: Any) -> Person:
        people.append(Person(site, chromium, email, server, **options))
        return people[-1]

    yield entered
    for person in people:
        person.close()


@pytest.fixture
def visitor(site: Site) -> Iterator[Callable[..., Visitor]]:
    """Open visitors."""
    visitors: list[Visitor] = []

    def made(server: int = 0) -> Visitor:
        visitors.append(site.visitor(server))
        return visitors[-1]

    yield made
    for each in visitors:
        each.close()
