"""A console of each test, in its own loop."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.console.served import Served
from tests.control.command import Command

Make = Callable[..., Awaitable[Served]]


@pytest.fixture
def muster(tmp_path: Path) -> Command:
    """The command, in an instance folder of its own."""
    return Command(tmp_path / "instance")


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Start a console with these options."""
    async with contextlib.AsyncExitStack() as stack:

        async def made(**options: Any) -> Served:
            served = Served(tmp_path, **options)
            await served.face.start()
            stack.push_async_callback(served.stop)
            return served

        yield made


@pytest.fixture
async def served(make: Make) -> Served:
    """A console with two users."""
    return await make()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()
