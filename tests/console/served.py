"""A console in the test's own loop, without nodes behind it, and browsers that speak to it without a browser."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import structlog
from msgspec import to_builtins

from muster_server.control.cluster.instance import Process
from muster_server.control.config.options import Links
from muster_server.plane.systems import actions
from muster_server.plane.trust import Trust
from muster_server.systems.console.http.entry import ConsoleEntry
from muster_server.systems.console.http.routes import handlers
from muster_server.systems.console.options import ConsoleOptions
from muster_server.systems.console.system import ConsoleSettings
from muster_server.systems.console.users import line_of
from muster_server.systems.http import keys
from muster_server.systems.http.access import Access
from muster_server.systems.http.face import Base
from muster_server.systems.http.keys import Keyring
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.http.server import HttpFace, Serving
from muster_server.systems.http.system import HttpSettings
from tests.waiting import PATIENT_S

SECRET = b"s" * 32
SESSION = "/api/v1/console/session"
PASSWORDS = {"ann": "correct horse", "bob": "battery staple"}
USERS = (line_of("ann", "operator", PASSWORDS["ann"]), line_of("bob", "viewer", PASSWORDS["bob"]))


async def no_nodes() -> Sequence[Process]:
    """Nothing runs."""
    return []


class Served:
    """One console. `entry` is its own part."""

    entry: ConsoleEntry

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.keys_file = folder / "http-keys.json"
        given: dict[str, Any] = {"users": USERS, "sample_s": 0.5} | options
        made = ConsoleOptions(**given)
        http = HttpSettings(options=HttpOptions(docs=False), keys_file=str(self.keys_file), folder=str(folder))
        self.settings = ConsoleSettings(options=made, http=http, links=to_builtins(Links()))
        serving = Serving(
            options=http.options,
            bind=("127.0.0.1", 0),
            keys_file=self.keys_file,
            trust=Trust((SECRET,)),
            where=str(folder),
            nodes=no_nodes,
            version="0",
        )
        self.face = HttpFace(serving, structlog.get_logger(), partial(self._enter))
        self._browsers: list[Browser] = []

    def _enter(self, base: Base, access: Access, keyring: Keyring) -> ConsoleEntry:
        self.entry = ConsoleEntry(self.settings, base, access, keyring, 0, handlers)
        return self.entry

    def key(self, *scopes: str, name: str = "key") -> str:
        """A new API key, in force at once."""
        known = {action.name: action.text for action in actions().values()}
        _, secret = keys.create(self.keys_file, name, scopes, known)
        self.face.reload(Trust((SECRET,)))
        return secret

    def browser(self, **headers: str) -> "Browser":
        """A browser without a session."""
        made = Browser(self.face.url, headers)
        self._browsers.append(made)
        return made

    async def logged_in(self, name: str = "ann") -> "Browser":
        """A browser of this user."""
        made = self.browser()
        assert (await made.login(name, PASSWORDS[name])).status_code == 200
        return made

    async def stop(self) -> None:
        """End it."""
        for each in self._browsers:
            await each.http.aclose()
        await self.face.stop()


class Browser:
    """Keeps its cookie, as a browser does on loopback, and shows the token of its session."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self.http = httpx2.AsyncClient(base_url=url, headers=headers, timeout=PATIENT_S, trust_env=False, verify=False)
        self.cookie = self.token = ""

    async def ask(self, method: str, path: str, token: str | None = None, **more: Any) -> httpx2.Response:
        """One request, with the cookie and the token."""
        headers = {"cookie": self.cookie, "x-csrf-token": self.token if token is None else token}
        headers |= more.pop("headers", {})
        answer = await self.http.request(method, path, headers=headers, **more)
        for line in answer.headers.get_list("set-cookie"):
            self.cookie = line.partition(";")[0]
        return answer

    async def login(self, name: str = "", password: str = "", **means: str) -> httpx2.Response:
        """Log in by these."""
        answer = await self.ask("POST", SESSION, json=means or {"name": name, "password": password})
        if answer.status_code == 200:
            self.token = answer.json()["csrf"]
        return answer
