"""A replay or a drop of all dead letters takes those that are dead when it begins, though others die meanwhile."""

from types import SimpleNamespace
from typing import Any

import pytest

from muster_server.systems.messages import admin_service
from muster_server.systems.messages.admin_service import AdminService
from muster_server.systems.messages.answers import LastAnswer
from muster_server.systems.messages.shapes import Changed, Found, LetterPage, Query, Shown, Which

PAGE = 3
LETTERS = 10


class Dying(AdminService):
    """Its dead letters are in the order of their times; one that is replayed is due now, and dead in the next moment."""

    def __init__(self) -> None:
        self.now = 1_000
        self.times = {number: 100 + number for number in range(LETTERS)}
        self.replays = 0

    def _which(self, query: Query) -> Which:
        after = admin_service._after(query.after)
        return Which(1, query.begin, query.end, query.states, PAGE, after)

    async def _found(self, which: Which) -> Found:
        after = which.after or (0, 0)
        match = sorted((at, number) for number, at in self.times.items() if after < (at, number) and at <= which.end)
        page = match[:PAGE]
        last = page[-1] if len(match) > PAGE else None
        return Found([[number, [number]] for _, number in page], len(match), [], False, last)

    def _shown(self, found: Found) -> list[Shown]:
        return [
            Shown(id=str(number), topic="t", state="dead", due_at=0, attempts=1, version=1) for number, _ in found.found
        ]

    async def _replay(self, asked: tuple[str, list[str]]) -> list[Changed]:
        for id in asked[1]:
            self.now += 1
            self.replays += 1
            self.times[int(id)] = self.now
        return [Changed(id=id, outcome="done") for id in asked[1]]


async def test_letters_that_die_again_meanwhile_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Dying()
    monkeypatch.setattr(admin_service, "now_ms", lambda: service.now)
    asked, pages = LetterPage("t"), 0
    while pages < 20:
        page = await service._replay_page(asked)
        pages += 1
        if not page.next:
            break
        asked = LetterPage("t", page.until, page.next)
    assert pages == 4
    assert service.replays == LETTERS, "each letter once"


class Growing(Dying):
    """Another message, which was due earlier, dies with each page that is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.died = dict.fromkeys(self.times, 500)
        self.dropped: list[int] = []

    async def last_answers(self, *_: Any) -> list[LastAnswer]:
        """As a center's link."""
        return [LastAnswer(number, at, "status", 500, b"") for number, at in self.died.items()]

    async def _drop(self, asked: tuple[str, list[str]]) -> list[Changed]:
        for id in asked[1]:
            self.dropped.append(int(id))
            del self.times[int(id)]
        self.now += 1
        newest = max(self.died) + 1
        self.times[newest], self.died[newest] = 900, self.now
        return [Changed(id=id, outcome="done") for id in asked[1]]


async def test_letters_that_die_during_a_drop_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Growing()
    service._link = SimpleNamespace(ask=service.last_answers)  # type: ignore[assignment]
    monkeypatch.setattr(admin_service, "now_ms", lambda: service.now)
    asked, count = LetterPage("t"), 0
    for _ in range(20):
        page = await service._drop_page(asked)
        count += len(page.changed)
        if not page.next:
            break
        asked = LetterPage("t", page.until, page.next)
    assert sorted(service.dropped) == list(range(LETTERS))
    assert count == LETTERS
    assert set(service.times) == {10, 11, 12, 13}
