"""What an open page of the web console costs the nodes: the CPU of all processes beside the console's own.

`muster up --demo --with all` runs on the server core: all systems, a load of 10,000 deliveries a second. A round measures it
alone, then with ten browsers at each page, each with its event stream and the requests that the page makes by itself.
The browsers share the driver core. The figure is the CPU of the processes of all nodes but the console's, over that of
the same round without a page, divided by the number of pages.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench import cpu, pin
from bench.child import Child, ChildFailedError, private_directory, python_environment
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, Series, interleave
from muster_server.control.cluster import instance as folders
from muster_server.control.errors import UserError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PAGES: Final = {
    "overview": "overview",
    "rooms": "rooms",
    "one room": "rooms/default%3Ademo",
    "topology": "topology",
    "presence": "presence",
    "likes": "likes",
    "messages": "messages",
    "fleet": "fleet",
    "keys and audit": "keys",
    "doctor": "doctor",
}
OPEN, OPEN_QUICK = 10, 2
SECONDS, SECONDS_QUICK = 10.0, 3.0
"""Two readings of the nodes by the console."""
START_S: Final = 90.0
SETTLE_S: Final = 4.0
"""The first requests of a page, and a reading of the nodes, are over by then."""
CONSOLE: Final = "console"
COST: Final = "CPU of the nodes for an open page, % of a core"
OWN: Final = "CPU of the console for an open page, % of a core"
ALONE: Final = "no page"
GOAL: Final = Goal("PF-47", "<=", 1.0)


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """One instance and one browser for all rounds. Raises `ChildFailedError` where there is no Chromium."""
    pages, seconds = (OPEN_QUICK, SECONDS_QUICK) if quick else (OPEN, SECONDS)
    with ExitStack() as stack:
        browser = stack.enter_context(_chromium())
        instance = stack.enter_context(_instance())
        login = instance.login(browser)
        entries = [Entry(ALONE, lambda: Sample(instance.busy(seconds)))]
        entries += [
            Entry(name, lambda place=place: Sample(_opened(instance, browser, login, place, pages, seconds)))  # type: ignore[misc]
            for name, place in PAGES.items()
        ]
        results = interleave(entries, rounds, progress)
    return tuple(_cases(results, pages, quick=quick))


def _cases(results: Results, pages: int, *, quick: bool) -> Iterator[Case]:
    for figure in (COST, OWN):
        alone = results.series(ALONE, figure)
        yield Case.plain(f"{ALONE}: {figure.replace(' for an open page', '')}", alone)
        for name in PAGES:
            with_pages = results.series(name, figure).values
            each = Series(tuple((mine - none) / pages for mine, none in zip(with_pages, alone.values, strict=True)))
            title = f"{name}: {figure}"
            yield Case.limit(title, each, GOAL, quick=quick) if figure == COST else Case.plain(title, each)


class Instance:
    """The instance's processes, and the way in for browsers."""

    def __init__(self, record: folders.Record, environment: dict[str, str]) -> None:
        self._record, self._environment = record, environment
        of_console = {each.pid for each in record.processes if each.role == CONSOLE}
        self._pids = {COST: {each.pid for each in record.processes} - of_console, OWN: of_console}

    def busy(self, seconds: float) -> dict[str, float]:
        """The shares of a core of the nodes and of the console over this time, in percent."""
        began = {name: cpu.total_ns(pids) for name, pids in self._pids.items()}
        start = time.monotonic_ns()
        time.sleep(seconds)
        took = time.monotonic_ns() - start
        return {name: 100 * (cpu.total_ns(pids) - began[name]) / took for name, pids in self._pids.items()}

    def login(self, browser: "Browser") -> "Login":
        """Log in once; other browsers take the session over."""
        words = [sys.executable, "-m", "muster_server", "console", "login", "--role", "viewer", "--json"]
        done = subprocess.run(words, env=self._environment, capture_output=True, text=True, check=True)
        link = str(json.loads(done.stdout)["url"])
        context = browser.new_context()
        page = context.new_page()
        page.goto(link)
        page.get_by_role("navigation").wait_for()
        kept = context.storage_state()
        context.close()
        return Login(link.partition("/#")[0], kept)


class Login:
    """The console's address and a session's cookie."""

    def __init__(self, url: str, state: object) -> None:
        self.url, self._state = url, state

    def page(self, browser: "Browser", place: str) -> "Page":
        """Open a page in a browser of its own: browsers open six connections to a server at most."""
        page = browser.new_context(storage_state=self._state).new_page()  # type: ignore[arg-type]
        page.goto(f"{self.url}/#/{place}")
        page.get_by_role("heading", level=1).wait_for()
        return page


def _opened(
    instance: Instance, browser: "Browser", login: Login, place: str, pages: int, seconds: float
) -> dict[str, float]:
    opened = [login.page(browser, place) for _ in range(pages)]
    try:
        time.sleep(SETTLE_S)
        return instance.busy(seconds)
    finally:
        for page in opened:
            page.context.close()


@contextmanager
def _instance() -> Iterator[Instance]:
    with private_directory("console") as directory:
        folder = Path(directory) / "instance"
        environment = {**python_environment(), "MUSTER_INSTANCE__DIR": str(folder), "MUSTER_LOG__LEVEL": "error"}
        words = [sys.executable, "-m", "muster_server", "up", "--demo", "--with", "all"]
        child = Child("muster", words, core=pin.SERVER_CORE, directory=Path(directory), environment=environment)
        try:
            child.wait_until(lambda: _ready(folder), seconds=START_S)
            time.sleep(SETTLE_S)
            yield Instance(folders.find(folders.Folder(folder)), environment)
        finally:
            child.stop()


def _ready(folder: Path) -> bool:
    try:
        processes = folders.find(folders.Folder(folder)).processes
    except UserError:
        return False
    return any(each.role == CONSOLE for each in processes) and all(each.ready for each in processes)


@contextmanager
def _chromium() -> Iterator["Browser"]:
    program = shutil.which("chromium")
    if program is None:
        raise ChildFailedError("no program chromium on PATH: install Debian's package chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise ChildFailedError("no Python package playwright: scripts/setup.sh --tests installs it") from None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
