"""A whole fleet plane in one place, without calls between processes: presence, picks and runs by one clock."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from muster_server.systems.fleet import schema
from muster_server.systems.fleet.dispatcher import SEED_STEP, Answer, Dispatcher, Send
from muster_server.systems.fleet.index import Index
from muster_server.systems.fleet.leases import Leases
from muster_server.systems.fleet.picks import Pick, Picks
from muster_server.systems.fleet.presence import Presence
from muster_server.systems.fleet.runs import RunEnd, RunName, Runs
from muster_server.systems.fleet.schema import Hello
from muster_server.systems.fleet.selector import Selector


class Whole:
    """What an index node and a scheduler do, one after the other."""

    def __init__(
        self,
        minute: int,
        send: Send,
        answered: Callable[[Answer], None],
        ended: Callable[[RunEnd], None],
        *,
        leases: Leases,
        runs: Runs,
        beat_ms: int,
        receipt_ms: int,
        result_ms: int,
        forget_ms: int = 1 << 40,
        known_max: int = 1 << 20,
    ) -> None:
        self.index = Index()
        self.picks = Picks(self.index, minute)
        self.runs, self.leases = runs, leases
        self._ended = ended
        self.presence = Presence(
            self.index, leases, self.picks, beat_ms=beat_ms, forget_ms=forget_ms, send=send, known_max=known_max
        )
        self.dispatcher = Dispatcher(
            runs, receipt_ms=receipt_ms, result_ms=result_ms, send=send, answered=answered, ended=self._over
        )
        self._live: dict[RunName, tuple[Selector, int, list[np.ndarray[Any, np.dtype[np.uint32]]]]] = {}

    @property
    def dropped(self) -> Counter[str]:
        return self.presence.dropped + self.dispatcher.dropped

    def receive(self, now_ms: int, topic: str, payload: bytes) -> None:
        """To the one of both that has subscribed to it; what no one did goes to the first."""
        kind = topic.rpartition("/")[2]
        answers = {each.rpartition("/")[2] for each in schema.ANSWERS}
        (self.dispatcher if kind in answers else self.presence).receive(now_ms, topic, payload)

    def run(
        self, now_ms: int, name: RunName, selector: Selector, wanted: int, seed: int, *, kind: str, target: str
    ) -> Pick:
        order = self.dispatcher.order(name, kind, target, {})
        self.runs.check(name, wanted)
        pick = self.picks.pick(selector, wanted, seed)
        self._live[name] = (selector, seed, [pick.numbers])
        self.dispatcher.begin(now_ms, name, order, self._epochs(pick), wanted)
        return pick

    def tick(self, now_ms: int, minute: int) -> None:
        self.picks.advance(minute)
        self.presence.tick(now_ms)
        for wanted in self.dispatcher.tick(now_ms):
            selector, seed, held = self._live[wanted.run]
            asked = np.concatenate(held)
            again = (seed + SEED_STEP) % (1 << 64)
            pick = self.picks.pick(selector, len(wanted.silent), again, without=asked)
            held.append(pick.numbers)
            self.dispatcher.replaced(now_ms, wanted.run, self._epochs(pick))

    def _epochs(self, pick: Pick) -> list[tuple[str, int]]:
        records = [self.index.record(client) for client in pick.clients]
        return [(record.client, record.epoch) for record in records if record is not None]

    def _over(self, ended: RunEnd) -> None:
        self.picks.release(np.concatenate(self._live.pop(ended.run)[2]))
        self._ended(ended)


def hello(client: str, epoch: int = 1, **attributes: str) -> tuple[str, bytes]:
    """Topic and payload."""
    said = Hello(epoch, 1, {name: [value] for name, value in attributes.items()})
    return schema.up(client, "hello"), schema.written(said)
