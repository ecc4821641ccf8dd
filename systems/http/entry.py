"""The entry of a server with the routes of all systems, but with callers of another kind than keys and tokens.

The HTTP face itself has none. Knows no system.
"""

from collections.abc import Callable
from typing import Protocol

from litestar import Litestar

from muster_server.systems.http.access import Access, Caller
from muster_server.systems.http.face import AnyRequest, Base, Face
from muster_server.systems.http.front import Application
from muster_server.systems.http.keys import Keyring


class Entry(Face, Protocol):
    """A part of the face with routes of its own, which identifies the callers of all routes."""

    def caller(self, request: AnyRequest) -> Caller:
        """The caller of a request. Raises `Problem`."""

    def around(self, routes: Litestar) -> Application:
        """The application that takes each request before the routes do."""


MakeEntry = Callable[[Base, Access, Keyring], Entry]
