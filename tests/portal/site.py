"""A running portal, its visitors by HTTP, and its people in browsers."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx2
from playwright.sync_api import Browser, ConsoleMessage, Page, expect
from sqlalchemy import Executable, Row, create_engine, text
from sqlalchemy.pool import NullPool

from tests.documents import ROOT
from tests.waiting import PATIENT_S, wait_for

PASSWORD: Final = "correct horse battery"
ANN, BO, STAFF = "ann@example.org", "bo@example.org", "staff@example.org"
TOKEN: Final = re.compile(r'name="csrf" value="(\w+)"')

expect.set_options(timeout=PATIENT_S * 1_000)


class Site:
    """`python -m portal` in a folder of its own."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self.process = folder, process
        self.lines: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line)
            if "Ctrl-C" in line:
                break
        else:
            raise AssertionError(f"the portal ended with {process.wait()}:\n{''.join(self.lines)}")
        self.settings: dict[str, Any] = json.loads((folder / "settings.json").read_text())
        self.origins: list[str] = self.settings["origins"]

    def visitor(self, server: int = 0) -> "Visitor":
        """A program that keeps cookies, as a browser does."""
        return Visitor(self.origins[server])

    def has(self, *words: str) -> bool:
        """Return whether such a process runs."""
        with contextlib.suppress(AssertionError):
            return self.child(*words) > 0
        return False

    def asked(self, path: str) -> Any:
        """The answer of Muster's HTTP face."""
        answer = httpx2.get(
            self.settings["http_url"] + path,
            headers={"x-api-key": self.settings["key"]},
            timeout=PATIENT_S,
            trust_env=False,
        )
        return answer.raise_for_status().json()

    def child(self, *words: str) -> int:
        """The pid of a process that the portal has started, by words of its command line."""
        for pid in self._descendants(self.process.pid):
            with contextlib.suppress(OSError):
                if all(word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() for word in words):
                    return pid
        raise AssertionError(f"no process with {words}")

    def _descendants(self, pid: int) -> Iterator[int]:
        """Its children, then theirs."""
        children = []
        with contextlib.suppress(OSError):
            children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        yield from children
        for each in children:
            yield from self._descendants(each)

    def rows(self, database: str, statement: str | Executable) -> Sequence[Row[Any]]:
        """Rows of the database `portal` or `ledger`."""
        url = self.settings["database_url" if database == "portal" else "ledger_url"]
        for driver, plain in ("+aiosqlite", ""), ("+asyncmy", "+pymysql"), ("+asyncpg", "+psycopg"):
            url = url.replace(driver, plain)
        engine = create_engine(url, poolclass=NullPool)
        with engine.connect() as connection:
            return connection.execute(text(statement) if isinstance(statement, str) else statement).all()

    def mails(self, to: str) -> list[str]:
        """The mails in the sink, the oldest first."""
        found = sorted((self.folder / "mail").glob(f"{to}-*.txt"), key=lambda path: path.stat().st_mtime_ns)
        return [path.read_text() for path in found]

    def mail(self, to: str, condition: Callable[[str], object] = bool) -> str:
        """The first mail for which the condition holds, once it is there."""
        found: str = wait_for(lambda: next(filter(condition, self.mails(to)), ""), f"a mail to {to}")
        return found


@contextlib.contextmanager
def running(folder: Path, *more: str, **variables: str) -> Iterator[Site]:
    """A portal from its first page to its end. `more`: words of its command; `variables`: of its environment."""
    words = (sys.executable, "-m", "portal", "--folder", str(folder), "--port", "0", "--mail-wait", "10", *more)
    process = subprocess.Popen(
        words,
        cwd=ROOT / "examples" / "portal",
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Site(folder, process)
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=PATIENT_S)
        assert process.returncode == 0, rest


class Visitor:
    """Asks pages and sends their forms."""

    def __init__(self, origin: str) -> None:
        self.http = httpx2.Client(base_url=origin, timeout=PATIENT_S, trust_env=False)

    def get(self, path: str) -> httpx2.Response:
        """A page."""
        return self.http.get(path)

    def token(self, path: str = "/") -> str:
        """The token that the forms of a page have."""
        found = TOKEN.search(self.get(path).text)
        assert found is not None
        return found[1]

    def send(self, path: str, origin: str = "", **fields: str) -> httpx2.Response:
        """A form, with the token of the front page or of the login. `origin`: the site whose page has the form."""
        token = fields.pop("csrf", None)
        fields["csrf"] = self.token("/" if "portal" in self.http.cookies else "/login") if token is None else token
        return self.http.post(path, data=fields, headers={"origin": origin} if origin else None)

    def login(self, email: str, password: str = PASSWORD) -> httpx2.Response:
        """Log in."""
        return self.send("/login", contact=email, password=password)

    def close(self) -> None:
        """Leave."""
        self.http.close()


class Person:
    """A person in a browser of its own. `close` fails if a page reported an error or asked a foreign host."""

    def __init__(self, site: Site, browser: Browser, email: str, server: int = 0, **options: Any) -> None:
        self.site, self.origin = site, site.origins[server]
        self.context = browser.new_context(locale="en-GB", **options)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENT_S * 1_000)
        self.troubles: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: self.troubles.append(f"a dialog: {dialog.message}"))
        self.page.on("request", lambda request: self._asked(request.url))
        self.go("/login")
        self.login(email)

    def login(self, email: str) -> None:
        """Fill the form of the page."""
        self.page.get_by_label("E-mail or phone").fill(email)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Log in").click()
        expect(self.page.get_by_role("button", name="Log out")).to_be_visible()

    def go(self, path: str) -> Page:
        """Open a page, until it is live."""
        self.page.goto(self.origin + path)
        expect(self.page.locator("#live")).to_have_attribute("data-state", "on")
        return self.page

    def share(self, title: str, text: str, at: str = "") -> str:
        """Write a share, and return its path."""
        page = self.go("/write")
        page.get_by_label("Title").fill(title)
        page.get_by_label("Text").fill(text)
        page.get_by_label("Publish at").fill(at)
        page.get_by_role("button", name="Publish").click()
        page.wait_for_url(re.compile(r"/shares/\d+$"))
        return page.url.removeprefix(self.origin)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.troubles.append(message.text)

    def _asked(self, url: str) -> None:
        if not url.startswith((*self.site.origins, self.site.settings["edge_url"], "data:")):
            self.troubles.append(f"asked {url}")

    def close(self) -> None:
        """Leave."""
        self.context.close()
        assert self.troubles == []
