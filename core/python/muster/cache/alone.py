"""Level 2 of a cache without a Redis: tokens and marks in memory; the entries are those of level 1.

It returns the same results as the scripts, for one process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from .entry import Found
from .far import Taken
from .near import Near

STATES_MAX: Final = 10_000
"""Limit of keys with a token, a mark or a hold; beyond it, lapsed states are removed. The rest is bounded by the drops
within one `hold_s`."""


@dataclass(slots=True)
class _State:
    token: str = ""
    token_ends: float = 0.0
    hold_ends: float = 0.0
    marks: dict[str, float] = field(default_factory=dict)

    def lapsed(self, now: float) -> bool:
        return max(self.token_ends, self.hold_ends, *self.marks.values(), 0.0) <= now


class Alone:
    """Level 2 within one process."""

    def __init__(self, near: Near) -> None:
        self._near = near
        self._states: dict[str, _State] = {}
        self._sweep_at = STATES_MAX

    async def get(self, key: str) -> Found | None:
        kept = self._near.get(key)
        if kept is None:
            return None
        now = monotonic()
        return Found(None, kept.until - now, kept.ends - now, kept.load_s, kept.made, kept.value)

    async def take(self, key: str, token: str, lock_s: float, seen: bytes) -> Taken:
        now, state = monotonic(), self._state(key)
        state.marks = {writer: ends for writer, ends in state.marks.items() if ends > now}
        if state.marks:
            return Taken("marked", primary=True)
        found = await self.get(key)
        if found is not None and found.made != seen:
            return Taken("there", entry=found)
        if state.token and state.token_ends > now:
            return Taken("wait", wait_s=state.token_ends - now)
        state.token, state.token_ends = token, now + lock_s
        return Taken("yours", primary=state.hold_ends > now)

    async def fill(self, key: str, token: str, kept_ms: int, rest: bytes) -> bytes:
        state = self._states.get(key)
        if state is None or state.token != token:
            return b""
        state.token, state.token_ends = "", 0.0
        if state.lapsed(monotonic()):
            del self._states[key]
        return token.encode()

    async def change(self, keys: Sequence[str], writer: str, mark_s: float, hold_s: float, told: str) -> None:
        now = monotonic()
        for key in keys:
            state = self._state(key)
            state.token, state.token_ends = "", 0.0
            state.hold_ends = max(state.hold_ends, now + mark_s + hold_s)
            if mark_s:
                state.marks[writer] = now + mark_s
            else:
                state.marks.pop(writer, None)

    async def renew(self, keys: Sequence[str], writer: str, mark_s: float, hold_s: float) -> bool:
        now, states = monotonic(), [self._states.get(key) for key in keys]
        for state in states:
            if state is None or writer not in state.marks:
                return False
            state.marks[writer] = now + mark_s
            state.hold_ends = max(state.hold_ends, now + mark_s + hold_s)
        return True

    async def close(self) -> None:
        """Does nothing: there is no connection."""

    def _state(self, key: str) -> _State:
        if len(self._states) >= self._sweep_at:
            now = monotonic()
            self._states = {each: state for each, state in self._states.items() if not state.lapsed(now)}
            self._sweep_at = max(STATES_MAX, 2 * len(self._states))
        return self._states.setdefault(key, _State())
