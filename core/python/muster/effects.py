"""Messages that are sent if and only if an effect outside a database took place, for example a payment at another
company.

No transaction joins the two, so the effect itself is the outcome: the message's id is the idempotency key with which
the effect is requested, and the check-back asks for its outcome with the same key. Owns the block and the three
answers. It must not know the effect.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Literal, Self, cast

from .checks import ANSWER_S, CHECK_S, Checks, Outcome, Pending, Prepared
from .errors import Invalid
from .messages import Messages

Reply = Literal["commit", "abort", "unknown"]
"""`commit`: the effect took place. `abort`: it did not, and cannot any more. `unknown`: neither is certain yet."""
Ask = Callable[[str, Prepared], Awaitable[Reply]] | Callable[[str, Prepared], Reply]
OUTCOMES: Final[dict[str, Outcome | str]] = {
    "commit": Outcome("OK"),
    "abort": Outcome("ABORT"),
    "unknown": "the outcome of the effect is not known",
}


class Effects(Checks):
    """Messages about effects of one kind, and the answers to their check-backs, as an ASGI application."""

    def __init__(
        self,
        messages: Messages,
        ask: Ask,
        *,
        check_topic: str,
        secret: str,
        check_s: float = CHECK_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`ask`: returns the outcome of an effect by its message's id. A plain function runs in a thread.

        It returns `abort` only if the effect cannot take place any more, and `unknown` for a key that is merely
        unknown, since the request may still be in transit. `check_topic`, `secret`: for these messages alone.
        `check_s`: seconds from the start of a block that reports nothing to its check-back. `answer_s`: limit of a
        coroutine `ask`, in seconds. Raises `Invalid`.
        """
        super().__init__(messages, check_topic=check_topic, secret=secret, check_s=check_s, answer_s=answer_s)
        self._ask = ask

    def message(
        self,
        topic: str,
        data: Any,
        *,
        in_s: float | None = None,
        type: str = "application/octet-stream",
        handler: str = "",
        key: str = "",
    ) -> "Effect":
        """A block with one effect, `with` or `async with`: the message is sent at its end.

        `data`: bytes are a body of this `type`; anything else is sent as JSON. `in_s`: delay in seconds after the
        block. `handler`: name of the calls in `calls`; the default is the topic. `key`: as for
        `Messages.send`. Raises `Invalid`.
        """
        return Effect(self, self._prepared(topic, data, in_s, type, key), handler or topic)

    async def outcome(self, id: str, prepared: Prepared) -> Outcome | str:
        """Return the outcome from `ask`. Raises as it does: the server's 500 asks for another check-back."""
        if not inspect.iscoroutinefunction(self._ask):
            return await asyncio.to_thread(self.outcome_sync, id, prepared)
        try:
            async with asyncio.timeout(self._answer_s):
                return _outcome(await self._ask(id, prepared))
        except TimeoutError:
            return f"ask did not return within {self._answer_s:g} s"

    def outcome_sync(self, id: str, prepared: Prepared) -> Outcome | str:
        """Return the outcome from `ask`. Raises as it does, and `Invalid` if it is a coroutine function."""
        if inspect.iscoroutinefunction(self._ask):
            raise Invalid("ask is a coroutine function; use answer instead of answer_sync")
        return _outcome(cast(Reply, self._ask(id, prepared)))


class Effect(Pending):
    """One block. `id`: the message's id, and the idempotency key of the effect."""

    _aborted = False

    def abort(self) -> None:
        """Report that the effect did not take place, and cannot any more: no message is sent."""
        self._aborted = True

    def __enter__(self) -> Self:
        """Prepare. Raises as `Messages.send`: then the block does not run, and no message is sent."""
        self._prepare()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell. After an error that does not decide the effect, the check-back asks."""
        if self._aborted:
            self._abort()
        elif error is None:
            self._commit(Outcome("OK"))

    async def __aenter__(self) -> Self:
        """As `__enter__`."""
        await asyncio.to_thread(self.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `__exit__`."""
        await asyncio.to_thread(self.__exit__, kind, error, trace)


def _outcome(said: Reply) -> Outcome | str:
    found = OUTCOMES.get(said)
    if found is None:
        raise Invalid(f"ask returned {said!r:.80} (expected commit, abort or unknown)")
    return found
