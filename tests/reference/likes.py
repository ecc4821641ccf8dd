"""Slow, obvious model of likes: for each item, its likers in the order of their likes."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Likes:
    """Exact while an item has at most 32 likers: the engine keeps the order of no more."""

    likers: dict[bytes, list[int]] = field(default_factory=dict)

    def put(self, item: bytes, user: int, likes: bool) -> bool:
        """Returns whether the user liked the item before."""
        likers = self.likers.setdefault(item, [])
        was = user in likers
        if likes and not was:
            likers.append(user)
        if was and not likes:
            likers.remove(user)
        return was

    def delete(self, item: bytes) -> bool:
        """Returns whether the item existed."""
        return self.likers.pop(item, None) is not None

    def feed(self, items: Sequence[bytes], viewer: int | None, newest: int) -> list[tuple[int, bool | None, list[int]]]:
        """Count, whether the viewer likes it, and newest likers of each item."""
        page: list[tuple[int, bool | None, list[int]]] = []
        for item in items:
            likers = self.likers.get(item, [])
            liked = None if viewer is None else viewer in likers
            page.append((len(likers), liked, likers[::-1][:newest]))
        return page
