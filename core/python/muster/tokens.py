"""A client's credential: given by the program, or fetched by its function and renewed before its end."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from .errors import Invalid, MusterError, Refused

if TYPE_CHECKING:
    from .client import Client

Token: TypeAlias = bytes | str | Callable[[], Awaitable[bytes | str]]
"""A credential, or an async function that returns one. The function is called at the start, and again when its last
token is refused."""

AGAIN_S: Final = 1.0
AGAIN_S_MAX: Final = 30.0
"""Pause before a failed token function is called again, doubled up to the maximum; a random part of it is waited."""
RENEW_S_MAX: Final = 60.0
RENEW_SHARE: Final = 0.25
"""A new token is requested when this share of the present token's remaining time is left, and at most RENEW_S_MAX
before its end; at a random moment of the first half of that time."""


class Tokens:
    """The tokens of one client."""

    def __init__(self, client: "Client", token: Token | None) -> None:
        self._client = client
        self.current: bytes | str | None = None if callable(token) else token
        self.source: Callable[[], Awaitable[bytes | str]] | None = token if callable(token) else None
        self._opened = False
        """The current token has opened a session."""
        self.renewing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unopened: dict[int, bool] = {}
        """Sessions that wait for a new token; the value tells whether the engine has stopped trying other servers."""

    def on_ready(self, side: int) -> None:
        """A session is open."""
        self._unopened.pop(side, None)
        self._opened = True

    def on_leased(self, left_ms: int) -> None:
        """The session's token expires: request a new one in time if there is a token function."""
        self._opened = True
        if self.source is None:
            return
        left_s = left_ms / 1_000
        early_s = min(left_s * RENEW_SHARE, RENEW_S_MAX) * random.uniform(0.5, 1)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._client.loop.call_later(left_s - early_s, self._renew_early, self.source)

    def renew(self, side: int, *, final: bool) -> bool:
        """Request a new token. Returns False if that is useless: there is no function, or its last token opened no
        session."""
        renewing = self.renewing is not None and not self.renewing.done()
        if self.source is None or not (renewing or self._opened):
            return False
        self._unopened[side] = final
        if not renewing:
            self._opened = False
            self.renewing = self._client.loop.create_task(self._fetch(self.source))
        return True

    def close(self) -> None:
        """Fetch no further token."""
        if self._timer is not None:
            self._timer.cancel()
        if self.renewing is not None:
            self.renewing.cancel()

    def _renew_early(self, source: Callable[[], Awaitable[bytes | str]]) -> None:
        if self.renewing is None or self.renewing.done():
            self.renewing = self._client.loop.create_task(self._fetch(source))

    async def _fetch(self, source: Callable[[], Awaitable[bytes | str]]) -> None:
        """Call the token function until it returns a token, and open the sessions that the previous token did not."""
        client, wait_s = self._client, AGAIN_S
        while True:
            try:
                token = await source()
                if client.closed:
                    return
                self._take(token)
                break
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if client.closed:
                    return
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise  # otherwise the token function was cancelled
                if isinstance(error, MusterError) and not error.retry:
                    self._end_without(error)
                    break
                for side in self._unopened:
                    client.note_down(side, f"has no token: {error!r:.80}")
            await asyncio.sleep(random.uniform(wait_s / 2, wait_s))
            wait_s = min(2 * wait_s, AGAIN_S_MAX)
        self._unopened.clear()

    def _end_without(self, error: MusterError) -> None:
        """End the sessions for which no untried server is left, since there is no other token."""
        ended = [side for side, final in self._unopened.items() if final]
        self._opened = not ended  # a session that still tries other servers may accept the token
        for side in ended:
            self._client.end_side(side, error)

    def _take(self, token: bytes | str) -> None:
        if not self._client.use_token(token_bytes(token)):
            if not self._unopened:
                return  # the sessions use their token until its end
            raise Refused("the token function returned the refused token again", "bad_credential")
        self.current = token


def token_bytes(token: bytes | str) -> bytes:
    """A token as servers take it. Raises `Invalid`."""
    if not isinstance(token, bytes | str):
        raise Invalid(f"invalid token of type {type(token).__name__} (expected bytes or text)")
    return token.encode() if isinstance(token, str) else token
