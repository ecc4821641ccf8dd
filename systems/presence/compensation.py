"""The compensation runner of an online writer: asks gateways for versions that did not come, and for full states.

It owns transactions: which is open, when it is given up, how long a gateway is left alone after it did not answer. What is
missing it reads from the writer; it must not know how versions are counted, nor how a frame gets to a gateway.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from muster_server._engines import presence_ask, presence_full_ask

Range = tuple[int, int]
HAS_ALL: Final = (1 << 16, 1 << 16)
"""`FullAsk::HAS_ALL`: the writer has the whole state, and the gateway may forget it."""
BACK_OFF_DOUBLINGS: Final = 5
"""Waits of 2^5 times the first one are longer than `back_off_max_us` of any use."""


class Gaps(Protocol):
    """What a runner needs of a writer (`muster_server._engines.PresenceWriter`)."""

    def due(self, now: int) -> list[tuple[int, int, list[Range]]]: ...
    def asked(self, ap: int, ranges: list[Range], transaction: int) -> None: ...
    def waits(self, ap: int, transaction: int) -> int: ...
    def release(self, ap: int, transaction: int) -> None: ...
    def fulls(self) -> list[tuple[int, str, int | None, list[Range], int | None]]: ...
    def full_asked(self, ap: int, transaction: int) -> None: ...


class CompensationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Times are microseconds."""

    asks_max: int = 16
    """Asks in flight, each for up to 32 ranges of one gateway."""
    fulls_max: int = 2
    """Gateways whose full state is on its way. Those that are silent, or that put the writer off, stand in nobody's way."""
    answer_us: int = 200_000
    """An ask without its answer is given up after this."""
    full_answer_us: int = 1_000_000
    """Chunks of a full state that did not come are asked for again after this."""
    full_tries: int = 5
    """After so many of these the state is asked for anew."""
    back_off_max_us: int = 5_000_000
    """A gateway that does not answer is asked this seldom at least."""


@dataclass(slots=True)
class _Open:
    """One transaction."""

    number: int
    ap: int
    until: int
    tries: int = 0
    is_idle: bool = False
    """Nothing of a full state comes: its gateway is silent, or cuts as many as it may."""


@dataclass(slots=True)
class _Silence:
    """A gateway that left asks unanswered."""

    times: int = 0
    not_before: int = 0


class Compensation:
    """Runs by calls of `run`: after frames came, and at the time that the last call gave."""

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
        """`send`: takes a gateway's number and a frame. `epoch`: of the writer; transactions of two lives differ by it."""
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
        """Do what is due; give the time of the next call."""
        self._close(now)
        self._ask(now)
        self._ask_for_states(now)
        opened = [open_.until for open_ in (*self._asks.values(), *self._fulls.values())]
        return min([now + self._settings.answer_us, *opened])

    @property
    def in_flight(self) -> tuple[int, int]:
        """Asks, and full states."""
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
        """Gateways whose full state comes, without one of them."""
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
        """Between three and five quarters, so that writers that lost the same packets do not ask as one."""
        return round(wait_us * self._chance.uniform(0.75, 1.25))
