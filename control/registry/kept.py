"""What was read of a tree, kept for as long as the server would have told of a change. Lives in one loop.

The server tells of a change before it answers with what is newer, but who hands both over may do so in any order: an answer
is kept only if no change was told of since it was asked for, and one that comes later drops it.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar, cast

from control.registry.tree import parent

T = TypeVar("T")
KEPT_MAX: Final = 1 << 16
"""Answers; whoever reads more of them asks again."""


class Kept:
    """Answers by what was asked and of which path."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, object]] = {}
        self._signs: dict[str, object] = {}
        """Of the paths that are asked about: what tells of a change takes the sign from every question under way."""
        self._count = 0

    async def read(self, what: str, path: str, ask: Callable[[], Awaitable[T | None]]) -> T | None:
        """The answer that is kept, else the one of `ask`. None is never kept: nothing tells when it ends."""
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

    def changed(self, path: str) -> None:
        """What was read of this, or is being read, may be another by now."""
        self._signs.pop(path, None)
        self._count -= len(self._kept.pop(path, ()))

    def written(self, paths: Iterable[str]) -> None:
        """These were made, changed or removed, so the list of what is above may be another by now as well."""
        for path in paths:
            self.changed(path)
            self.changed(parent(path))

    def forget(self) -> None:
        """Keep nothing."""
        self._signs.clear()
        self._kept.clear()
        self._count = 0
