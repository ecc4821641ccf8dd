"""Declarations of a program: handlers by topic, and how a call of one becomes a message.

Owns the arguments of a task as JSON. It must not know how tasks are leased or run.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar
from urllib.parse import quote

from ..errors import Invalid
from ..face import CONNECTIONS, TIMEOUT_S, Face
from ..messages import AsyncMessages, Sent, message

LEASE_S: Final = 60.0
LEASE_S_MAX: Final = 3_600.0
RESULT_BYTES_MAX: Final = 4_096
RESERVED: Final = frozenset({"in_s", "at", "id", "window_s", "expires_at"})
"""Names that say when and as what a task is sent; a handler has no arguments of these names."""

Missed = Literal["once", "all", "none"]
P = ParamSpec("P")
R = TypeVar("R")


class Hopeless(Exception):
    """Raised by a handler whose task no further attempt can help: the task becomes a dead letter at once."""


class Handler(Generic[P, R]):
    """A function with its topic. Called, it is the function; `send` has a worker call it."""

    def __init__(self, tasks: "Tasks", topic: str, function: Callable[P, R], lease_s: float) -> None:
        self.tasks, self.topic, self.function, self.lease_s = tasks, topic, function, lease_s
        self.recurring: dict[str, dict[str, Any]] = {}
        """Recurring tasks that `every` declared, by name."""
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = inspect.signature(function)
        clash = RESERVED & self.signature.parameters.keys()
        if clash:
            raise Invalid(
                f"the handler of {topic} has the argument {min(clash)}, which says how a task is sent; rename it"
            )
        self.__doc__, self.__name__ = function.__doc__, getattr(function, "__name__", topic)

    def __call__(self, *given: P.args, **named: P.kwargs) -> R:
        return self.function(*given, **named)

    async def send(
        self,
        *,
        in_s: float | None = None,
        at: float | None = None,
        id: str | None = None,
        window_s: float = 0.0,
        expires_at: float | None = None,
        **arguments: Any,
    ) -> Sent:
        """Have a worker call the function with these arguments; the task is durable when this returns.

        `in_s` from now, or `at`; without both as soon as a worker is free. The same `id` is the same task: a call that is
        repeated makes no second one. Raises `Invalid`, `Refused`, `Unavailable`, `TimedOut`.
        """
        made = self.message(in_s=in_s, at=at, id=id, window_s=window_s, expires_at=expires_at, **arguments)
        (said,) = await self.tasks.messages.send_many(self.topic, [made])
        if not isinstance(said, Sent):
            raise said
        return said

    def every(
        self, name: str, cron: str, *, zone: str = "UTC", missed: Missed = "once", **arguments: Any
    ) -> "Handler[P, R]":
        """Have the function called again and again: `cron` as Debian's cron has it, in a zone, as `"0 3 * * *"`. Workers set
        it when they start; the key needs the scope `change:TOPIC`. After a stop, `missed` has the latest occurrence made up
        for, or all, or none. Raises `Invalid`."""
        data = self.message(**arguments)["data"]
        self.recurring[name] = {"cron": cron, "zone": zone, "missed": missed, "data": data}
        return self

    def message(
        self,
        *,
        in_s: float | None = None,
        at: float | None = None,
        id: str | None = None,
        window_s: float = 0.0,
        expires_at: float | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """The same as one message of `send_many`. Raises `Invalid`."""
        try:
            self.signature.bind(**arguments)
        except TypeError as error:
            raise Invalid(f"task {self.topic}: {error}") from None
        try:
            json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid(f"task {self.topic}: its arguments are not JSON: {error}") from None
        return message(arguments, in_s=in_s, at=at, id=id, window_s=window_s, expires_at=expires_at)


class Tasks:
    """The tasks of one program: `tasks = Tasks(URL, key=KEY)`, then `@tasks.handler("mail")`.

    A topic is made once: `muster topic create mail --callback pull:`. The key needs the scopes `send:TOPIC` to send, and
    `work:TOPIC` for workers.
    """

    Hopeless = Hopeless

    def __init__(self, url: str, *, key: str, timeout: float = TIMEOUT_S, connections: int = CONNECTIONS) -> None:
        """`url`: of an HTTP face, or of the proxy before it. Raises `Invalid`."""
        self._opening = (url, key, timeout, connections)
        Face(url, key=key, timeout=timeout, connections=connections)  # what is wrong is told where it was written
        self._messages: AsyncMessages | None = None
        self.handlers: dict[str, Handler[Any, Any]] = {}

    @property
    def messages(self) -> AsyncMessages:
        """Its connections, of the loop in which they are first used."""
        if self._messages is None:
            url, key, timeout, connections = self._opening
            self._messages = AsyncMessages(url, key=key, timeout=timeout, connections=connections)
        return self._messages

    def face(self) -> Face:
        """Connections of a worker."""
        url, key, timeout, connections = self._opening
        return Face(url, key=key, timeout=timeout, connections=connections)

    async def close(self) -> None:
        """Close its connections. Another call opens some again."""
        if self._messages is not None:
            messages, self._messages = self._messages, None
            await messages.close()

    def handler(self, topic: str, *, lease_s: float = LEASE_S) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Have workers call this function for the tasks of a topic, with the task's arguments by name.

        An async function runs in the worker's loop, another one in a thread. What it returns is kept with the task: any JSON
        of up to 4 KiB. An exception has the task tried again by the retries of its topic. `lease_s`: a worker that dies
        holds a task for so long; one that lives extends it. Raises `Invalid`.
        """
        if topic in self.handlers:
            raise Invalid(f"topic {topic} has a handler already")
        if not 1.0 <= lease_s <= LEASE_S_MAX:
            raise Invalid(f"invalid lease_s {lease_s} (expected 1 to {LEASE_S_MAX:g} seconds)")

        def made(function: Callable[P, R]) -> Handler[P, R]:
            self.handlers[topic] = handler = Handler(self, topic, function, lease_s)
            return handler

        return made


def path(topic: str, rest: str) -> str:
    """The path of a topic's route."""
    return f"/api/v1/topics/{quote(topic, safe='')}/{rest}"


def arguments_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a message carries. Raises `Hopeless`."""
    given = document.get("data")
    if not isinstance(given, dict):
        raise Hopeless("the message is not a task: its body is not a JSON object of arguments by name")
    return given


def result_of(value: Any) -> Any:
    """Encode the value that a function returned. Raises `Hopeless` if it cannot be kept; the task itself was done."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise Hopeless(f"the result is not JSON: {error}") from None
    if len(text.encode()) > RESULT_BYTES_MAX:
        raise Hopeless(f"the result has more than {RESULT_BYTES_MAX} bytes")
    return value
