"""Runs in flight: orders to clients, receipts and results from them, over the counts of `runs.py`.

Owns the order of each run in flight and the epoch of each asked client. It must not know a broker, a socket, a store, a
clock, nor how clients are picked: messages come in as topic and bytes, orders go out through `send`, results through
`answered`, ended runs through `ended`; `tick` returns the clients that need a replacement. A malformed message is
counted by reason and dropped.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from muster_server.systems.fleet import schema
from muster_server.systems.fleet.floods import Floods
from muster_server.systems.fleet.runs import Replacement, RunEnd, RunName, Runs, Verdict
from muster_server.systems.fleet.schema import Order, Receipt, Result, SchemaError

Send = Callable[[str, bytes, int], None]
"""Sends (topic, payload, quality of service)."""
RunClients = Sequence[tuple[str, int]]
"""Clients, and the epoch of each that is asked."""

SEED_STEP: Final = 0x9E3779B97F4A7C15  # from a run's seed to that of its replacements


MESSAGES_MAX: Final = 1_000
"""Limit of one client's messages of one kind per second; a client has at most 255 runs in flight."""


class Answer(msgspec.Struct, frozen=True):
    """A result that counts."""

    run: RunName
    client: str
    result: Result


class _RunState(msgspec.Struct):
    """The state of a run until it ends."""

    order: bytes
    epochs: dict[str, int]


class Dispatcher:
    def __init__(
        self,
        runs: Runs,
        *,
        receipt_ms: int,
        result_ms: int,
        send: Send,
        answered: Callable[[Answer], None],
        ended: Callable[[RunEnd], None],
    ) -> None:
        self.dropped: Counter[str] = Counter()
        """Ignored messages of clients by reason: flood, topic, size, form, epoch, double, late, stranger."""
        self._runs = runs
        self._receipt_ms = receipt_ms
        self._result_ms = result_ms
        self._send = send
        self._answered = answered
        self._ended = ended
        self._live: dict[RunName, _RunState] = {}
        self._floods = Floods(MESSAGES_MAX)

    def order(self, name: RunName, kind: str, target: str, options: dict[str, Any]) -> bytes:
        """The order for each client of a run. Raises `SchemaError` if it is too large."""
        text = schema.run_name(*name)
        return schema.written(Order(text, kind, target, self._receipt_ms, self._result_ms, options))

    def begin(
        self,
        now_ms: int,
        name: RunName,
        order: bytes,
        asked: RunClients,
        wanted: int,
        *,
        replaced: Sequence[str] | None = None,
        done: Sequence[str] = (),
    ) -> None:
        """Send a run's order. Raises `RunsError`; nothing is sent then.

        For a run that is resumed, `replaced` (None: there was no draw of replacements yet) and `done` name clients; all
        others are asked again, and return the result that they have: the same run is the same order.
        """
        self._live[name] = _RunState(order, dict(asked))
        try:
            ended = self._runs.begin(now_ms, name, [client for client, _ in asked], wanted, replaced)
        except BaseException:
            del self._live[name]
            raise
        for client in done:
            _, over = self._runs.result(now_ms, name, client)
            ended = over or ended
        self._order(name, [client for client, _ in asked if client not in set(done)])
        self._end(ended)

    def replaced(self, now_ms: int, name: RunName, asked: RunClients) -> None:
        """Ask these clients in place of the silent ones that `tick` returned."""
        self._live[name].epochs.update(asked)
        ended = self._runs.replaced(now_ms, name, [client for client, _ in asked])
        self._order(name, [client for client, _ in asked])
        self._end(ended)

    def receive(self, now_ms: int, topic: str, payload: bytes) -> None:
        """Handle a message from the broker."""
        if self._floods.over(now_ms, topic):
            self.dropped["flood"] += 1
            return
        try:
            client, message = schema.read(topic, payload)
            if not isinstance(message, Receipt | Result):
                self.dropped["topic"] += 1
                return
            name = schema.run_of(message.run)
        except SchemaError as error:
            self.dropped[error.reason] += 1
            return
        live = self._live.get(name)
        if live is not None and live.epochs.get(client, message.epoch) != message.epoch:
            self.dropped["epoch"] += 1  # the client has restarted since it was asked
        elif isinstance(message, Receipt):
            self._drop(self._runs.receipt(now_ms, name, client))
        else:
            self._result(now_ms, name, client, message)

    def tick(self, now_ms: int) -> list[Replacement]:
        """End runs past their deadlines. Returns the needed replacements: `replaced` must follow for each."""
        wanted: list[Replacement] = []
        for action in self._runs.expire(now_ms):
            if isinstance(action, RunEnd):
                self._end(action)
            else:
                wanted.append(action)
        return wanted

    def _result(self, now_ms: int, name: RunName, client: str, result: Result) -> None:
        verdict, ended = self._runs.result(now_ms, name, client)
        self._drop(verdict)
        if verdict is Verdict.TAKEN:
            self._answered(Answer(name, client, result))
        self._end(ended)

    def _order(self, name: RunName, clients: Sequence[str]) -> None:
        order = self._live[name].order
        for client in clients:
            self._send(schema.down(client, "task"), order, schema.QOS["task"])

    def _end(self, ended: RunEnd | None) -> None:
        if ended is not None:
            del self._live[ended.run]
            self._ended(ended)

    def _drop(self, verdict: Verdict) -> None:
        if verdict is not Verdict.TAKEN:
            self.dropped[verdict.value] += 1
