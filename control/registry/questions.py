"""The questions of the embedded registry's clients, by `plane/calls` at its Unix socket."""

import msgspec

from muster_server.control.registry.tree import Entry, Operation


class Question(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`session`: that of the client, which each question keeps alive."""

    session: int


class Begin(Question, frozen=True):
    """Begin a session (0), or continue one. Answered by `Welcome`."""

    secret: bytes
    timeout_ms: int


class Watch(Question, frozen=True):
    """Answered by nothing at once, then by the paths that may have changed, until the session has another watch or
    ends."""


class Ping(Question, frozen=True):
    """Keepalive."""


class Get(Question, frozen=True):
    """Answered by `Found`."""

    path: str


class Children(Question, frozen=True):
    """Answered by entries by name."""

    path: str


class Transact(Question, frozen=True):
    """Answered by results, once they are in the file."""

    operations: list[Operation]


class Bye(Question, frozen=True):
    """End the session."""


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """The requested session, or a new one."""

    session: int
    secret: bytes
    timeout_ms: int


class Found(msgspec.Struct, frozen=True, array_like=True):
    """A node, if there is one."""

    entry: Entry | None
