"""A running instance with an edge: its addresses, tokens of users, and API keys."""

import re
import time
from typing import Final

from tests.faults.instance import Instance
from tests.waiting import PATIENT_S

CHAT: Final = re.compile(r"^open (http://\S+/) in a browser$", re.MULTILINE)
RIGHTS: Final = "*=read,publish,command,members,history"


class Served:
    """Owns nothing; the fixture ends the instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._keys = 0

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        return f"ws://{self.address[0]}:{self.address[1]}/connection/websocket"

    @property
    def address(self) -> tuple[str, int]:
        """The address of the edge for clients."""
        return self._bind("edge")

    @property
    def http(self) -> str:
        """The base URL of the HTTP face."""
        host, port = self._bind("http")
        return f"http://{host}:{port}"

    @property
    def chat(self) -> str:
        """The URL of the chat, as `muster up --demo` prints it."""
        deadline = time.monotonic() + PATIENT_S
        while (found := CHAT.search(self.instance.log.read_text())) is None:
            assert time.monotonic() < deadline, self.instance.tail()
            time.sleep(0.02)
        return found[1]

    def _bind(self, name: str) -> tuple[str, int]:
        bind = self.instance.process(name).bind
        assert isinstance(bind, tuple)
        return bind

    def token(self, user: str, cap: str = RIGHTS, seconds: int = 3_600) -> str:
        """A token of a user."""
        done = self.instance.ran("token", user, "--cap", cap, "--expires", f"{seconds}s")
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    def key(self, *scopes: str) -> str:
        """An API key with these scopes."""
        self._keys += 1
        words = [word for scope in scopes for word in ("--scope", scope)]
        done = self.instance.ran("key", "create", f"key-{self._keys}", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().split()[-1]
