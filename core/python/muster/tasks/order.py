"""In which order a worker begins tasks of several topics. Knows no task.

`high,low=1/4`: topics in strict order, the first one first; a topic with a share is taken at least so often while it has
tasks, so that it never waits for ever.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from ..errors import Invalid

SHARE: Final = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")


class Order:
    """Chooses the topic of the next task."""

    def __init__(self, topics: Sequence[tuple[str, Fraction]]) -> None:
        """Topics with their shares; 0: none. Raises `Invalid`."""
        names = [name for name, _ in topics]
        if not names or "" in names or len(set(names)) != len(names):
            raise Invalid("topics: name each topic once, separated by commas, for example high,low=1/4")
        if sum(share for _, share in topics) >= 1:
            raise Invalid("topics: the shares leave nothing for the first topic; make their sum less than 1")
        self.topics: tuple[str, ...] = tuple(names)
        self._shares = dict(topics)
        self._owed = dict.fromkeys(names, Fraction(0))

    @classmethod
    def parse(cls, text: str) -> "Order":
        """`high,low=1/4`. Raises `Invalid`."""
        topics: list[tuple[str, Fraction]] = []
        for part in text.split(","):
            name, equals, share = part.strip().partition("=")
            match = SHARE.fullmatch(share)
            if equals and (match is None or not int(match[2])):
                raise Invalid(f"topics: invalid share {part.strip()!r:.80} (expected for example 1/4)")
            topics.append((name.strip(), Fraction(share) if equals else Fraction(0)))
        return cls(topics)

    def next(self, has: Callable[[str], bool]) -> str | None:
        """The topic to take a task of; None: none `has` any."""
        there = [topic for topic in self.topics if has(topic)]
        if not there:
            return None
        for topic in self.topics:  # a topic without tasks saves nothing up
            self._owed[topic] = self._owed[topic] + self._shares[topic] if topic in there else Fraction(0)
        owed = [topic for topic in there if self._owed[topic] >= 1]
        chosen = max(owed, key=lambda topic: self._owed[topic]) if owed else there[0]
        self._owed[chosen] = max(Fraction(0), self._owed[chosen] - 1)
        return chosen
