"""A cache of what was read of a tree, valid for as long as the server would report a change. Lives in one loop.

The server reports a change before it answers with newer data, but both may be handed over in any order. So an answer is
stored only if no change was reported since its question; a later report drops it.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar, cast

from muster_server.control.registry.tree import parent

T = TypeVar("T")
KEPT_MAX: Final = 1 << 16
"""Limit of answers; beyond it a reader asks again."""
_NOTHING: Final[dict[str, object]] = {}


class ReadCache:
    """Answers by the question and its path."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, object]] = {}
        self._signs: dict[str, object] = {}
        """Marks of pending questions, by path: a report of a change removes them."""
        self._count = 0

    async def read(self, what: str, path: str, ask: Callable[[], Awaitable[T | None]]) -> T | None:
        """Return the stored answer, else that of `ask`. None is never stored: nothing reports its end."""
        if what in (known := self._kept.get(path, {})):
            return cast("T", known[what])
        sign = self._signs.setdefault(path, object())
        answer = None
        try:
            answer = await ask()
        finally:
            if current := self._signs.get(path) is sign:
                del self._signs[path]
        if current and answer is not None and self._count < KEPT_MAX:
            kept = self._kept.setdefault(path, {})
            self._count += what not in kept
            kept[what] = answer
        return answer

    def known(self, what: str, path: str) -> object:
        """The stored answer; None if there is none."""
        return self._kept.get(path, _NOTHING).get(what)

    def changed(self, path: str) -> None:
        """Drop answers and pending questions about this path: they may be outdated."""
        self._signs.pop(path, None)
        self._count -= len(self._kept.pop(path, ()))

    def written(self, paths: Iterable[str]) -> None:
        """Drop answers about these paths, which were created, changed or deleted, and the lists of their parents."""
        for path in paths:
            self.changed(path)
            self.changed(parent(path))

    def forget(self) -> None:
        """Drop everything."""
        self._signs.clear()
        self._kept.clear()
        self._count = 0
