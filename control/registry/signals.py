"""Callbacks for changes and for the session: the common part of the versions of the tree. Lives in one loop."""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from muster_server.control.registry.tree import Session, covers


class Signals:
    """Callbacks, each called by the loop and not from within a call. If one raises, it is logged and stays registered."""

    def __init__(self) -> None:
        self.session: Session = "expired"
        self._on_session: list[Callable[[Session], None]] = []
        self._watches: dict[object, tuple[str, Callable[[], None]]] = {}

    def on_session(self, callback: Callable[[Session], None]) -> None:
        """Add a callback for each change."""
        self._on_session.append(callback)

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Add a callback for changes at or below `path`."""
        key = object()
        self._watches[key] = path, callback

        def end() -> None:
            self._watches.pop(key, None)

        return end

    def become(self, session: Session) -> None:
        """Set the session's state."""
        if session == self.session:
            return
        self.session = session
        for told in self._on_session:
            _soon(told, session)
        if session == "connected":
            for _, callback in list(self._watches.values()):
                _soon(callback)

    def changed(self, paths: Iterable[str]) -> None:
        """Report changes at these paths."""
        every = list(paths)
        for above, callback in list(self._watches.values()):
            if any(covers(above, path) for path in every):
                _soon(callback)


def _soon(callback: Callable[..., None], *arguments: object) -> None:
    asyncio.get_running_loop().call_soon(_guarded, callback, *arguments)


def _guarded(callback: Callable[..., None], *arguments: object) -> None:
    try:
        callback(*arguments)
    except Exception:
        structlog.get_logger().exception("a callback of the registry raised")
