"""The compensation runner of an online writer: asks gateways for missing versions, and for full states.

Owns transactions: which is open, when it is abandoned, how long a silent gateway is not asked again. It reads from the
writer what is missing; it must not know how versions are counted, nor how a frame reaches a gateway.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from muster_server._engines import presence_ask, presence_full_ask

Range = tuple[int, int]
HAS_ALL: Final = (1 << 16, 1 << 16)
"""`FullAsk::HAS_ALL`: the writer has the whole state, and the gateway may discard it."""
BACK_OFF_DOUBLINGS: Final = 5
"""Limit of doublings: 2^5 times the first wait exceeds any useful `back_off_max_us`."""


class Gaps(Protocol):
    """The methods of a writer that a runner uses (`muster_server._engines.PresenceWriter`)."""

    def due(self, now: int) -> list[tuple[int, int, list[Range]]]: ...
    def asked(self, ap: int, ranges: list[Range], transaction: int) -> None: ...
    def waits(self, ap: int, transaction: int) -> int: ...
    def release(self, ap: int, transaction: int) -> None: ...
    def fulls(self) -> list[tuple[int, str, int | None, list[Range], int | None]]: ...
    def full_asked(self, ap: int, transaction: int) -> None: ...


class CompensationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Times are microseconds."""

    asks_max: int = 16
    """Limit of requests in flight, each for up to 32 ranges of one gateway."""
    fulls_max: int = 2
    """Limit of gateways that send their full state at a time. Silent gateways, and those that put the writer off, do
    not count."""
    answer_us: int = 200_000
    """A request without an answer is abandoned after this time."""
    full_answer_us: int = 1_000_000
    """Missing chunks of a full state are requested again after this time."""
    full_tries: int = 5
    """After this many such requests the full state is requested from the start."""
    back_off_max_us: int = 5_000_000
    """Longest interval between requests to a gateway that does not answer."""


@dataclass(slots=True)
class _Open:
    """One transaction."""

    number: int
    ap: int
    until: int
    tries: int = 0
    is_idle: bool = False
    """No chunk of a full state arrives: its gateway is silent, or sends as many states as it may."""


@dataclass(slots=True)
class _Silence:
    """A gateway that left requests unanswered."""

    times: int = 0
    not_before: int = 0


class Compensation:
    """Driven by calls of `run`: after frames arrived, and at the time that the last call returned."""

    def __init__(
        self,
        writer: Gaps,
        send: Callable[[int, bytes], None],
        *,
        shards: int,
        index: int,
        epoch: int,
        settings: CompensationSettings,
        chance: random.Random,
    ) -> None:
        """`send`: takes a gateway's number and a frame. `epoch`: the writer's; it distinguishes transactions of two
        lives."""
        self._writer = writer
        self._send = send
        self._shard = (shards, index)
        self._settings = settings
        self._chance = chance
        self._number = epoch << 32
        self._asks: dict[int, _Open] = {}
        self._fulls: dict[int, _Open] = {}
        self._silences: dict[int, _Silence] = {}
        self.asked = 0
        self.given_up = 0
        self.fulls_asked = 0

    def run(self, now: int) -> int:
        """Do what is due; return the time of the next call."""
        self._close(now)
        self._ask(now)
        self._ask_for_states(now)
        opened = [open_.until for open_ in (*self._asks.values(), *self._fulls.values())]
        return min([now + self._settings.answer_us, *opened])

    @property
    def in_flight(self) -> tuple[int, int]:
        """Numbers of requests for versions and for full states."""
        return len(self._asks), len(self._fulls)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _close(self, now: int) -> None:
        for open_ in list(self._asks.values()):
            if not self._writer.waits(open_.ap, open_.number):
                self._silences.pop(open_.ap, None)
            elif open_.until <= now:
                self.given_up += 1
                self._writer.release(open_.ap, open_.number)
                self._fall_silent(now, open_.ap, self._settings.answer_us)
            else:
                continue
            del self._asks[open_.number]

    def _ask(self, now: int) -> None:
        for ap, epoch, ranges in self._writer.due(now):
            if len(self._asks) >= self._settings.asks_max:
                return
            if self._is_silent(now, ap):
                continue
            number = self._next()
            self._writer.asked(ap, ranges, number)
            self._asks[number] = _Open(number, ap, now + self._jittered(self._settings.answer_us))
            self.asked += 1
            self._send(ap, presence_ask(number, self._shard, (ap, epoch), ranges))

    def _ask_for_states(self, now: int) -> None:
        needed = self._writer.fulls()
        names = {ap for ap, *_ in needed}
        for ap in self._fulls.keys() - names:
            self._send_full(ap, self._fulls.pop(ap).number, [HAS_ALL])
            self._silences.pop(ap, None)
        for ap, _why, transaction, missing, put_off in needed:
            known = self._fulls.get(ap)
            if known is not None and known.number == transaction:
                if put_off is not None and now < put_off:
                    known.tries, known.until, known.is_idle = 0, put_off, True
                elif missing:
                    known.is_idle = False
                if now < known.until:
                    continue
                if known.tries < self._settings.full_tries:
                    known.tries += 1
                    known.is_idle = not missing
                    known.until = now + self._jittered(self._settings.full_answer_us)
                    self._send_full(ap, known.number, missing)
                    continue
                self._fall_silent(now, ap, self._settings.full_answer_us)
                del self._fulls[ap]
            if self._is_silent(now, ap) or self._busy(ap) >= self._settings.fulls_max:
                continue
            number = self._next()
            self._writer.full_asked(ap, number)
            self._fulls[ap] = _Open(number, ap, now + self._jittered(self._settings.full_answer_us))
            self.fulls_asked += 1
            self._send_full(ap, number, [])

    def _busy(self, but: int) -> int:
        """Number of gateways that send their full state, except one of them."""
        return sum(not open_.is_idle for ap, open_ in self._fulls.items() if ap != but)

    def _send_full(self, ap: int, number: int, chunks: Sequence[Range]) -> None:
        self._send(ap, presence_full_ask(number, self._shard, ap, list(chunks)))

    def _is_silent(self, now: int, ap: int) -> bool:
        silence = self._silences.get(ap)
        return silence is not None and now < silence.not_before

    def _fall_silent(self, now: int, ap: int, first_us: int) -> None:
        silence = self._silences.setdefault(ap, _Silence())
        wait = min(first_us << min(silence.times, BACK_OFF_DOUBLINGS), self._settings.back_off_max_us)
        silence.times += 1
        silence.not_before = now + self._jittered(wait)

    def _jittered(self, wait_us: int) -> int:
        """Between three and five quarters of the wait, so that writers that lost the same packets do not ask at once."""
        return round(wait_us * self._chance.uniform(0.75, 1.25))
