"""Messages that go if and only if an effect outside a database took place, as a payment at another firm's server.

No transaction joins the two, so the outcome is the effect's own: the message's id is the key under which the effect is asked
for (an idempotency key), and the check-back asks under the same key. Owns the block and the three answers. It must not know
the effect.
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
"""The effect took place; it did not, and cannot any more; neither is sure now."""
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
        """`ask`: says by a message's id what became of its effect. A function that is no coroutine's runs in a thread.

        It says `abort` only if the effect cannot take place any more: not of a key that is merely unknown, whose request may
        still be on its way. `check_topic`, `secret`: of these messages alone. `check_s`: a check-back comes so long after
        the begin of a block that says nothing. `answer_s`: how long a coroutine `ask` may take. Raises `Invalid`.
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
    ) -> "Effect":
        """A block with one effect, `with` or `async with`: the message goes at its end.

        `data`: bytes, a body of this `type`; anything else is sent as JSON. `in_s`: this long after it. `handler`: names the
        calls in `calls`; else the topic does. Raises `Invalid`.
        """
        return Effect(self, self._prepared(topic, data, in_s, type), handler or topic)

    async def outcome(self, id: str, prepared: Prepared) -> Outcome | str:
        """As `ask` says. Raises as it does: the server's 500 asks for another check-back."""
        if not inspect.iscoroutinefunction(self._ask):
            return await asyncio.to_thread(self.outcome_sync, id, prepared)
        try:
            async with asyncio.timeout(self._answer_s):
                return _outcome(await self._ask(id, prepared))
        except TimeoutError:
            return f"the effect was not asked about within {self._answer_s:g} s"

    def outcome_sync(self, id: str, prepared: Prepared) -> Outcome | str:
        """As `ask` says. Raises as it does, and `Invalid` where it is a coroutine function."""
        if inspect.iscoroutinefunction(self._ask):
            raise Invalid("ask is a coroutine function; use answer")
        return _outcome(cast(Reply, self._ask(id, prepared)))


class Effect(Pending):
    """One block. `id`: the message's, and the key of the effect."""

    _aborted = False

    def abort(self) -> None:
        """Say that the effect did not take place, and cannot any more: nothing is sent."""
        self._aborted = True

    def __enter__(self) -> Self:
        """Prepare. Raises as `Messages.send`: then the block does not run, and nothing is sent."""
        self._prepare()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell. After an error that says nothing of the effect, the check-back asks."""
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
        raise Invalid(f"ask said {said!r:.80}, which is not commit, abort or unknown")
    return found
