"""The clients that are online and their attributes: hellos, heartbeats and byes, connected to the index and its leases.

Owns the order of these steps, and the moment when a client is forgotten. It must not know runs, a broker, a socket or a
clock: messages come in as topic and bytes, notices go out through `send`; times in ms of a steady clock come in. One
message in, at most two notices out; a malformed message is counted by reason and dropped. Of several index nodes, which
all receive everything, one sends notices to a client: `speaks` tells whether this one does. Only a node that lacks a
client asks it for a hello.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from muster_server.systems.fleet import schema
from muster_server.systems.fleet.floods import Floods
from muster_server.systems.fleet.index import Index, Update, UpdateError
from muster_server.systems.fleet.leases import Leases, Renewal
from muster_server.systems.fleet.picks import Picks
from muster_server.systems.fleet.schema import Beat, Bye, Hello, Notice, SchemaError

Send = Callable[[str, bytes, int], None]
"""Sends (topic, payload, quality of service)."""

Changed = Callable[[Update, bool | None, dict[str, list[str]]], None]
"""Called with (record, whether the client came, went or neither, its attributes)."""

AHEAD_MS: Final = 60_000
"""An epoch this many ms ahead of the node's clock comes from a wrong clock."""
TIMES_MS: Final = range(10**11, 253_402_300_800_000)
"""Epochs that are times in ms since 1970, up to the year 9999; others are a client's own numbers."""
KNOWN_MAX: Final = 1 << 21
"""Limit of known clients, online or not; the hello of a further one is refused: about 2 GB."""
MESSAGES_MAX: Final = 20
"""Limit of one client's messages of one kind per second; the shortest heartbeat makes 10."""


class Presence:
    def __init__(
        self,
        index: Index,
        leases: Leases,
        picks: Picks,
        *,
        beat_ms: int,
        forget_ms: int,
        send: Send,
        speaks: Callable[[str], bool] = lambda client: True,
        changed: Changed = lambda update, came, attributes: None,
        wall_ms: Callable[[], int] = lambda: TIMES_MS.stop,
        clear: Callable[[str], None] = lambda topic: None,
        known_max: int = KNOWN_MAX,
    ) -> None:
        """A client that is offline for `forget_ms` is forgotten: it is new when it returns.

        `changed` is called when a client for which this node speaks came (True), went (False) or has other attributes.
        `wall_ms`: an epoch beyond it is in the future. `clear` removes a topic's retained message at the broker.
        """
        self.dropped: Counter[str] = Counter()
        """Ignored messages of clients by reason: flood, topic, size, form, refused."""
        self.came = self.went = 0
        self._index = index
        self._leases = leases
        self._picks = picks
        self._beat_ms = beat_ms
        self._forget_ms = forget_ms
        self._send = send
        self._speaks = speaks
        self._changed = changed
        self._wall_ms, self._clear = wall_ms, clear
        self._kept: dict[str, set[str]] = {}
        """Topics of clients with a retained message at the broker."""
        self._kept_since: deque[tuple[int, str]] = deque()
        """(when, client) of the clients in `_kept`, the earliest first."""
        self._known_max = known_max
        self._floods = Floods(MESSAGES_MAX)
        self._said: dict[str, tuple[int, int]] = {}
        """(epoch, version) of each client's last hello."""
        self._left: deque[tuple[int, str, int]] = deque()
        """(when, client, epoch) of clients that went, the earliest first."""
        self._ahead: dict[str, int] = {}
        """Epochs in the future, by client."""
        self._absent: dict[str, tuple[int, dict[str, list[str]]]] = {}
        """(epoch, attributes) of clients whose leases ended; a heartbeat brings them back."""

    def receive(self, now_ms: int, topic: str, payload: bytes) -> None:
        """Handle a message from the broker."""
        if self._floods.over(now_ms, topic):
            self.dropped["flood"] += 1
            return
        try:
            client, message = schema.read(topic, payload)
        except SchemaError as error:
            self.dropped[error.reason] += 1
            return
        match message:
            case Hello():
                self._hello(now_ms, client, message)
            case Beat():
                self._beat(now_ms, client, message)
            case Bye():
                self._leases.hint(now_ms, client, message.epoch)
            case _:
                self.dropped["topic"] += 1

    def retained(self, now_ms: int, topic: str) -> None:
        """Note a retained message of this topic. It was sent earlier, so it is no sign of life."""
        client = schema.client_of(topic)
        if client is None or (client not in self._kept and len(self._kept) >= self._known_max):
            return
        if client not in self._kept:
            self._kept_since.append((now_ms, client))
        self._kept.setdefault(client, set()).add(topic)

    def _clear_kept(self, client: str) -> None:
        """Clear the retained messages of a client that went."""
        topics = self._kept.pop(client, set())
        if self._speaks(client):
            for topic in topics:
                self._clear(topic)

    def tick(self, now_ms: int) -> None:
        """Handle leases that ended, and forget clients that went long ago."""
        while self._kept_since and self._kept_since[0][0] + self._leases.lease_ms < now_ms:
            _, client = self._kept_since.popleft()
            if self._leases.epoch(client) is None:  # a whole lease has passed without a sign of life
                self._clear_kept(client)
        for client, epoch in self._leases.expire(now_ms):
            self._gone(now_ms, client, epoch)
        for _ in range(len(self._left)):
            when, client, epoch = self._left[0]
            if when + self._forget_ms > now_ms:
                return
            self._left.popleft()
            self._forget(now_ms, client, epoch)

    def ahead(self) -> dict[str, int]:
        """Clients whose clocks are ahead, with their epochs."""
        self._ahead = {
            client: epoch
            for client, epoch in self._ahead.items()
            if self._is_ahead(epoch) and self._leases.epoch(client) == epoch
        }
        return self._ahead

    def readmit(self, client: str) -> bool:
        """Let a client begin again with any epoch. Returns whether it was known."""
        known = self._index.record(client)
        if known is not None and known.attributes is not None:
            self.went += 1
            if self._speaks(client):
                self._changed(Update(client, known.epoch, known.version + 1, None), False, known.attributes)
        self._index.reset(client)
        self._leases.forget(client)
        for each in (self._said, self._absent, self._ahead):
            each.pop(client, None)
        return known is not None

    def restored(self, now_ms: int) -> None:
        """Give every client of a copied index a whole lease: it goes offline only if it sends no heartbeat."""
        for client in self._index.names():
            record = self._index.record(client)
            assert record is not None
            if record.attributes is not None:
                self._leases.renew(now_ms, client, record.epoch)
            else:
                self._left.append((now_ms, client, record.epoch))

    def _hello(self, now_ms: int, client: str, hello: Hello) -> None:
        if len(self._said) >= self._known_max and client not in self._said:
            self.dropped["refused"] += 1
            self._notify(client, Notice("refused", hello.epoch, f"too many known clients (limit {self._known_max})"))
            return
        if self._is_over(client, hello.epoch):
            self.readmit(client)
        before = self._leases.epoch(client)
        if hello.epoch < self._latest(client) or self._leases.renew(now_ms, client, hello.epoch) is Renewal.STALE:
            self._supersede(client, hello.epoch)
            return
        if before is not None and before < hello.epoch:
            self._notify(client, Notice("superseded", before))
        known = self._index.record(client)
        there = known is not None and known.epoch == hello.epoch and known.attributes is not None
        if there and (hello.epoch, hello.version) <= self._said.get(client, (0, 0)):
            # it may have missed the first notice
            self._notify(client, Notice("beat", hello.epoch, beat_ms=self._beat_ms))
            return
        update = Update(client, hello.epoch, self._next_version(client, hello.epoch), hello.attributes)
        try:
            self._index.apply(update)
        except UpdateError as error:
            self.dropped["refused"] += 1
            self._notify(client, Notice("refused", hello.epoch, str(error)))
            return
        self.came += not there
        self._absent.pop(client, None)
        if self._speaks(client):
            self._changed(update, None if there else True, hello.attributes)
        self._said[client] = (hello.epoch, hello.version)
        if self._is_ahead(hello.epoch):
            self._ahead[client] = hello.epoch
        self._notify(client, Notice("beat", hello.epoch, beat_ms=self._beat_ms))

    def _beat(self, now_ms: int, client: str, beat: Beat) -> None:
        known = self._index.record(client)
        if known is None:  # no lease without a hello: heartbeats of unknown clients leave no state
            self._send_notice(client, Notice("unknown", beat.epoch))  # the node that speaks may know the client
            return
        if self._is_over(client, beat.epoch):
            self._notify(client, Notice("unknown", beat.epoch))
            return
        if beat.epoch < self._latest(client) or self._leases.renew(now_ms, client, beat.epoch) is Renewal.STALE:
            self._supersede(client, beat.epoch)
            return
        if known.epoch != beat.epoch or known.attributes is None:
            self._notify(client, Notice("unknown", beat.epoch))
            self._back(client, known, beat.epoch)

    def _back(self, client: str, known: Update, epoch: int) -> None:
        """A client that only seemed offline, for example while this node stalled, keeps its state until its hello
        comes."""
        was, attributes = self._absent.pop(client, (0, {}))
        if was == epoch == known.epoch:
            update = Update(client, epoch, known.version + 1, attributes)
            self._index.apply(update)
            self.came += 1
            if self._speaks(client):
                self._changed(update, True, attributes)

    def _gone(self, now_ms: int, client: str, epoch: int) -> None:
        known = self._index.record(client)
        if known is not None and known.epoch == epoch and known.attributes is not None:
            update = Update(client, epoch, known.version + 1, None)
            self._index.apply(update)
            self.went += 1
            if self._speaks(client):
                self._changed(update, False, known.attributes)
            self._left.append((now_ms, client, epoch))
            self._absent[client] = (epoch, known.attributes)
            self._clear_kept(client)

    def _forget(self, now_ms: int, client: str, epoch: int) -> None:
        known = self._index.record(client)
        if known is None or known.epoch != epoch or known.attributes is not None:
            return  # it has returned
        if self._picks.in_flight(client) or self._leases.epoch(client) is not None:
            self._left.append((now_ms, client, epoch))
            return
        self._kept.setdefault(client, set()).update(schema.ups(client))
        self._clear_kept(client)
        # index, picks and leases together: another client gets the number next
        self._picks.forget(self._index.forget(client))
        self._leases.forget(client)
        self._said.pop(client, None)
        self._absent.pop(client, None)

    def _latest(self, client: str) -> int:
        """The latest known epoch of a client."""
        known = self._index.record(client)
        return max(self._leases.latest(client), 0 if known is None else known.epoch)

    def _is_ahead(self, epoch: int) -> bool:
        return self._wall_ms() + AHEAD_MS < epoch and epoch in TIMES_MS

    def _is_over(self, client: str, epoch: int) -> bool:
        """Whether a later epoch does not count any more: it is in the future, from a clock that was ahead, and has
        ended."""
        latest = self._latest(client)
        return epoch < latest and self._leases.epoch(client) is None and self._is_ahead(latest)

    def _supersede(self, client: str, epoch: int) -> None:
        """Notify a client that a later epoch uses its name."""
        text = f"epoch {self._latest(client)} is later; once it has ended: muster fleet heal {client}"
        self._notify(client, Notice("superseded", epoch, text))

    def _next_version(self, client: str, epoch: int) -> int:
        """The next version of the index's record: a client's own version does not count when it comes and goes."""
        known = self._index.record(client)
        return known.version + 1 if known is not None and known.epoch == epoch else 1

    def _notify(self, client: str, notice: Notice) -> None:
        if self._speaks(client):
            self._send_notice(client, notice)

    def _send_notice(self, client: str, notice: Notice) -> None:
        self._send(schema.down(client, "notice"), schema.written(notice), schema.QOS["notice"])
