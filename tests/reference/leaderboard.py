"""Slow, obvious model of a leaderboard: each member's score, and when it got it."""

from dataclasses import dataclass, field


@dataclass
class Leaderboard:
    """`by_time`: of equal scores the first one is above, else the greater name."""

    by_time: bool = False
    scores: dict[bytes, float] = field(default_factory=dict)
    """The member that got its score last comes last."""

    def put(self, member: bytes, score: float, only: str = "") -> int:
        """Returns whether anything changed; raises `ValueError` for no such condition."""
        former = self.scores.get(member)
        match only:
            case "":
                wanted = True
            case "new":
                wanted = former is None
            case "existing":
                wanted = former is not None
            case "greater":
                wanted = former is None or score > former
            case "less":
                wanted = former is None or score < former
            case _:
                raise ValueError(only)
        if not wanted or former == score:
            return 0
        self.scores.pop(member, None)
        self.scores[member] = score
        return 1

    def add(self, member: bytes, by: float) -> float:
        """Returns the new score."""
        score = self.scores.get(member, 0.0) + by
        self.put(member, score)
        return score

    def remove(self, member: bytes) -> int:
        """Returns whether it was there."""
        return int(self.scores.pop(member, None) is not None)

    def top(self) -> list[tuple[bytes, float]]:
        """Best first."""
        names = list(self.scores) if self.by_time else sorted(self.scores, reverse=True)
        return [(name, self.scores[name]) for name in sorted(names, key=lambda name: -self.scores[name])]
