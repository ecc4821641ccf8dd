"""A slow and obvious model of inboxes: lists, and sets of what is read. Every answer of a store is compared with it."""

from dataclasses import dataclass, field

from muster_server.systems.inbox.shapes import ALL, COUNT_MAX, New


@dataclass
class Item:
    """An own entry, or a broadcast."""

    number: int
    new: New
    at: int
    count: int = 1
    audience: str = ""
    until: int = 0

    @property
    def id(self) -> str:
        return f"b{self.number}" if self.audience else str(self.number)


@dataclass
class Person:
    """One user."""

    last: int = 0
    items: list[Item] = field(default_factory=list)
    ids: dict[str, tuple[New, int]] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=lambda: {ALL: 0})
    off: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)


class Inboxes:
    """All users and all broadcasts."""

    def __init__(self) -> None:
        self.people: dict[int, Person] = {}
        self.broadcasts: list[Item] = []
        self.broadcast_ids: dict[str, tuple[New, str, int]] = {}

    def person(self, user: int) -> Person:
        return self.people.setdefault(user, Person())

    def notify(self, user: int, new: New, now: int) -> tuple[int, str]:
        person = self.person(user)
        if new.id and new.id in person.ids:
            there, seq = person.ids[new.id]
            return seq, "same" if there == new else "conflict"
        if new.kind in person.off:
            return 0, "off"
        person.last += 1
        count = 1
        for item in list(person.items):
            if new.group and (item.new.kind, item.new.group) == (new.kind, new.group):
                person.items.remove(item)
                count = item.count + 1
        person.items.append(Item(person.last, new, now, count))
        if new.id:
            person.ids[new.id] = new, person.last
        return person.last, "new" if count == 1 else "grown"

    def broadcast(self, audience: str, new: New, until: int, now: int) -> tuple[int, str]:
        if new.id and new.id in self.broadcast_ids:
            there, where, number = self.broadcast_ids[new.id]
            return number, "same" if (there, where) == (new, audience) else "conflict"
        number = len(self.broadcasts) + 1
        self.broadcasts.append(Item(number, new, now, 1, audience, until))
        if new.id:
            self.broadcast_ids[new.id] = new, audience, number
        return number, "new"

    def visible(self, user: int, now: int) -> list[Item]:
        """The broadcasts that the user can see."""
        person = self.person(user)
        return [
            item
            for item in self.broadcasts
            if item.until > now
            and item.new.kind not in person.off
            and item.audience in person.joined
            and item.number > person.joined[item.audience]
        ]

    def join(self, audience: str, user: int, *, leave: bool) -> None:
        joined = self.person(user).joined
        if leave:
            joined.pop(audience, None)
        elif audience not in joined or (audience == ALL and not joined[ALL]):
            joined[audience] = len(self.broadcasts)

    def mark(self, user: int, verb: str, seq: int, number: int, kind: str) -> None:
        """All up to a cursor; broadcasts that the user cannot see now are marked too."""
        person = self.person(user)
        items = [item for item in person.items if item.number <= seq]
        items += [item for item in self.broadcasts if item.number <= number]
        ids = {item.id for item in items if not kind or item.new.kind == kind}
        person.seen |= ids
        if verb == "read":
            person.read |= ids

    def mark_one(self, user: int, id: str, now: int) -> None:
        """One entry as read, if the user has it."""
        person = self.person(user)
        if id in {item.id for item in (*person.items, *self.visible(user, now))}:
            person.read.add(id)

    def unread(self, user: int, now: int) -> dict[str, int]:
        return self._counted(user, now, self.person(user).read)

    def unseen(self, user: int, now: int) -> dict[str, int]:
        return self._counted(user, now, self.person(user).read | self.person(user).seen)

    def _counted(self, user: int, now: int, without: set[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for item in (*self.person(user).items, *self.visible(user, now)):
            if item.id not in without:
                found[item.new.kind] = min(found.get(item.new.kind, 0) + 1, COUNT_MAX)
        return found
