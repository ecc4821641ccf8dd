"""Slow, obvious model of `core/presence/src/contest.rs`: which of a user's sessions at several gateways ends.

Sessions that exclude each other are a group: one device, one kind of device, or all of a user, by the policy. In each group
one session holds the place, and the others end.
"""

from dataclasses import dataclass, field
from typing import Literal

Policy = Literal["many", "one per kind", "one"]
Place = tuple[str, int]
"""Device and gateway."""


def group_of(policy: Policy, device: str) -> str:
    """The group that a device's sessions are in."""
    return {"many": device, "one per kind": device.partition(":")[0], "one": ""}[policy]


@dataclass(frozen=True, order=True)
class Session:
    """A session, in the order of the gateways' clocks."""

    at_ms: int
    gateway: int
    version: int
    device: str

    @property
    def place(self) -> Place:
        """Where it is."""
        return self.device, self.gateway


@dataclass
class Contest:
    """The sessions of one user."""

    policy: Policy
    online: dict[Place, Session] = field(default_factory=dict)
    ending: set[Session] = field(default_factory=set)

    def came(self, session: Session, *, in_order: bool) -> None:
        """A session came. `in_order`: by the newest event of its gateway."""
        self.went(session.place)
        self.online[session.place] = session
        for rival in self._group(session.device):
            if rival.gateway == session.gateway or rival in self.ending:
                continue
            self.ending.add(rival if in_order or session > rival else session)

    def went(self, place: Place) -> None:
        """A session is over."""
        self.ending.discard(self.online.pop(place, Session(0, 0, 0, "")))

    def told(self, whole: set[int]) -> set[Session]:
        """Sessions that are told to end, where nothing is missing of these gateways."""
        for session in list(self.ending):
            group = self._group(session.device)
            if self.ending.issuperset(group):
                self.ending.discard(max(group))
        return {
            session
            for session in self.ending
            if any(each.gateway in whole for each in self._group(session.device) if each not in self.ending)
        }

    def _group(self, device: str) -> list[Session]:
        wanted = group_of(self.policy, device)
        return [each for each in self.online.values() if group_of(self.policy, each.device) == wanted]
