"""Messages from clients and to clients: joins the index, leases, picks and runs of one plane.

Owns the order in which these are asked. It must not know a broker, a socket or a store: messages come in as topic and bytes,
go out through `send`, and ended runs through `ended`; times in ms of a steady clock and minutes come in. One message in, a
bounded number out; a malformed message is counted by reason and dropped.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from plane.fleet import schema
from plane.fleet.index import Index, Update, UpdateError
from plane.fleet.leases import Leases, Renewal
from plane.fleet.picks import Pick, Picks
from plane.fleet.runs import Action, Replacement, RunEnd, RunName, Runs, Verdict
from plane.fleet.schema import Beat, Bye, Hello, Notice, Order, Receipt, Result, SchemaError
from plane.fleet.selector import Selector

Send = Callable[[str, bytes, int], None]
"""(topic, payload, quality of service)."""

SEED_STEP: Final = 0x9E3779B97F4A7C15  # from a run's seed to that of its replacements


class Answer(msgspec.Struct, frozen=True):
    """A result that counts."""

    run: RunName
    client: str
    result: Result


class _RunState(msgspec.Struct):
    """What a run needs until it ends."""

    selector: Selector
    order: bytes
    seed: int
    numbers: dict[str, int]


class Dispatcher:
    def __init__(
        self,
        index: Index,
        leases: Leases,
        picks: Picks,
        runs: Runs,
        *,
        beat_ms: int,
        receipt_ms: int,
        result_ms: int,
        send: Send,
        answered: Callable[[Answer], None],
        ended: Callable[[RunEnd], None],
    ) -> None:
        self.dropped: Counter[str] = Counter()
        """Messages of clients that changed nothing: topic, size, form, refused, epoch, double, late, stranger."""
        self._index = index
        self._leases = leases
        self._picks = picks
        self._runs = runs
        self._beat_ms = beat_ms
        self._receipt_ms = receipt_ms
        self._result_ms = result_ms
        self._send = send
        self._answered = answered
        self._ended = ended
        self._live: dict[RunName, _RunState] = {}
        self._said: dict[str, tuple[int, int]] = {}
        """(epoch, version) of each client's last hello."""

    def receive(self, now_ms: int, topic: str, payload: bytes) -> None:
        """A message from the broker."""
        try:
            client, message = schema.read(topic, payload)
            match message:
                case Hello():
                    self._hello(now_ms, client, message)
                case Beat():
                    self._beat(now_ms, client, message)
                case Bye():
                    self._leases.hint(now_ms, client, message.epoch)
                case Receipt():
                    if self._current(client, message.epoch):
                        self._drop(self._runs.receipt(now_ms, schema.run_of(message.run), client))
                case Result():
                    if self._current(client, message.epoch):
                        self._result(now_ms, client, message)
        except SchemaError as error:
            self.dropped[error.reason] += 1

    def run(
        self,
        now_ms: int,
        name: RunName,
        selector: Selector,
        wanted: int,
        seed: int,
        *,
        kind: str,
        target: str,
        options: dict[str, Any] | None = None,
    ) -> Pick:
        """Picks clients for a run and sends them the order. Raises `RunsError` and `SchemaError`; nothing is picked then."""
        self._runs.check(name, wanted)
        text = schema.run_name(*name)
        order = schema.written(Order(text, kind, target, self._receipt_ms, self._result_ms, options or {}))
        pick = self._picks.pick(selector, wanted, seed)
        self._live[name] = _RunState(selector, order, seed, {})
        ended = self._runs.begin(now_ms, name, pick.clients, wanted)
        self._order(self._live[name], pick)
        self._end(ended)
        return pick

    def tick(self, now_ms: int, minute: int) -> None:
        """Handles leases that ended, silent clients, and runs past their deadlines."""
        self._picks.advance(minute)
        for client, epoch in self._leases.expire(now_ms):
            self._gone(client, epoch)
        for action in self._runs.expire(now_ms):
            self._act(now_ms, action)

    def _hello(self, now_ms: int, client: str, hello: Hello) -> None:
        before = self._leases.epoch(client)
        heard = self._leases.renew(now_ms, client, hello.epoch)
        if heard is Renewal.STALE:
            self._notify(client, Notice("superseded", hello.epoch))
            return
        if before is not None and before < hello.epoch:
            self._notify(client, Notice("superseded", before))
        known = self._index.record(client)
        there = known is not None and known.epoch == hello.epoch and known.attributes is not None
        if there and (hello.epoch, hello.version) <= self._said.get(client, (0, 0)):
            return
        try:
            self._index.apply(Update(client, hello.epoch, self._next_version(client, hello.epoch), hello.attributes))
        except UpdateError as error:
            self.dropped["refused"] += 1
            self._notify(client, Notice("refused", hello.epoch, str(error)))
            return
        self._said[client] = (hello.epoch, hello.version)
        self._notify(client, Notice("beat", hello.epoch, beat_ms=self._beat_ms))

    def _beat(self, now_ms: int, client: str, beat: Beat) -> None:
        if self._leases.renew(now_ms, client, beat.epoch) is Renewal.STALE:
            self._notify(client, Notice("superseded", beat.epoch))
            return
        known = self._index.record(client)
        if known is None or known.epoch != beat.epoch or known.attributes is None:
            self._notify(client, Notice("unknown", beat.epoch))

    def _result(self, now_ms: int, client: str, result: Result) -> None:
        name = schema.run_of(result.run)
        verdict, ended = self._runs.result(now_ms, name, client)
        self._drop(verdict)
        if verdict is Verdict.TAKEN:
            self._answered(Answer(name, client, result))
        self._end(ended)

    def _act(self, now_ms: int, action: Action) -> None:
        if isinstance(action, RunEnd):
            self._end(action)
            return
        self._replace(now_ms, action)

    def _replace(self, now_ms: int, action: Replacement) -> None:
        live = self._live[action.run]
        asked = np.array(list(live.numbers.values()), dtype=np.uint32)
        seed = (live.seed + SEED_STEP) % (1 << 64)
        pick = self._picks.pick(live.selector, len(action.silent), seed, without=asked)
        ended = self._runs.replaced(now_ms, action.run, pick.clients)
        self._order(live, pick)
        self._end(ended)

    def _order(self, live: _RunState, pick: Pick) -> None:
        live.numbers.update(zip(pick.clients, pick.numbers.tolist(), strict=True))
        for client in pick.clients:
            self._send(schema.down(client, "task"), live.order, schema.QOS["task"])

    def _end(self, ended: RunEnd | None) -> None:
        if ended is not None:
            numbers = self._live.pop(ended.run).numbers
            self._picks.release(np.array(list(numbers.values()), dtype=np.uint32))
            self._ended(ended)

    def _gone(self, client: str, epoch: int) -> None:
        known = self._index.record(client)
        if known is not None and known.epoch == epoch and known.attributes is not None:
            self._index.apply(Update(client, epoch, known.version + 1, None))

    def _next_version(self, client: str, epoch: int) -> int:
        """Of the index's record: a client's own version does not count its comings and goings."""
        known = self._index.record(client)
        return known.version + 1 if known is not None and known.epoch == epoch else 1

    def _current(self, client: str, epoch: int) -> bool:
        """Whether an epoch is the one that was asked; another one's answers are not this client's."""
        known = self._index.record(client)
        if known is not None and known.epoch == epoch:
            return True
        self.dropped["epoch"] += 1
        return False

    def _drop(self, verdict: Verdict) -> None:
        if verdict is not Verdict.TAKEN:
            self.dropped[verdict.value] += 1

    def _notify(self, client: str, notice: Notice) -> None:
        self._send(schema.down(client, "notice"), schema.written(notice), schema.QOS["notice"])
