"""`muster pub ROOM`: a text, a file, or every line of stdin is a message."""

import asyncio
import contextlib
import re
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from muster.sizes import MESSAGE_BYTES_MAX
from muster_server.control.cluster.sdk import Client
from muster_server.control.errors import USAGE, UserError
from muster_server.control.terminal import pipes
from muster_server.control.terminal.common import typed
from muster_server.control.terminal.found import Target, connected
from muster_server.control.terminal.words import say

PLACE: Final = re.compile(r"\{(n|time|random)\}")
LATE_S: Final = 0.05
"""A delay up to this many seconds is caught up; a rate is guaranteed over longer times only."""


@dataclass(frozen=True, slots=True)
class What:
    """The messages: a text, `count` times; a file's content; or each line of stdin. `rate`: limit per second."""

    text: str | None = None
    file: Path | None = None
    count: int | None = None
    rate: float | None = None
    headers: Mapping[str, str] | None = None

    @property
    def is_endless(self) -> bool:
        """Whether only a signal ends it."""
        return self.text is not None and self.rate is not None and self.count is None

    @property
    def is_one(self) -> bool:
        """Whether it is one message."""
        return self.file is not None or (self.text is not None and self.rate is None and (self.count or 1) == 1)

    def name(self, number: int) -> str:
        """A name of a message, for an error."""
        return f"{'line' if self.text is None else 'message'} {number}"


async def publish(where: Target, room: str, what: What) -> int:
    """Publish all, and wait until the owner has numbered each message. Raises `UserError`."""
    sent = 0
    async with connected(where, reads=False) as client:
        if what.text is None and what.file is None and sys.stdin.isatty():
            say("muster: each line is a message; Ctrl-D ends the input")
        with progress(what) as step:

            def count(number: int) -> None:
                nonlocal sent
                sent = number
                step(number)

            try:
                await send(client, room, count, what)
            except asyncio.CancelledError:
                if what.is_endless:
                    say(f"published {sent} to {room}")
                raise
    say(f"published {sent} to {room}")
    return 0


async def send(client: Client, room: str, step: Callable[[int], None], what: What = What()) -> int:
    """Publish each message as it comes, in order. Waits for credit, and at the end until all are numbered."""
    sent = 0
    try:
        async for messages in paced(_messages(what), what.rate):
            for each in messages:
                if len(each) > MESSAGE_BYTES_MAX:
                    longest = f"a message has at most {MESSAGE_BYTES_MAX}"
                    raise UserError(f"{what.name(sent + 1)} has {len(each)} bytes; {longest}")
                while not client.publish_nowait(room, each, headers=what.headers):
                    await client.writable(room)
                sent += 1
            step(sent)
    except (UserError, asyncio.CancelledError):  # the lines before the error or signal are still published
        await acknowledged(client)
        raise
    await acknowledged(client)
    return sent


async def _messages(what: What) -> AsyncIterator[Sequence[bytes]]:
    """All messages, in batches."""
    if what.file is not None:
        yield [await asyncio.to_thread(_content, what.file)]
    elif what.text is None:
        async for lines in pipes.lines(0, MESSAGE_BYTES_MAX):
            yield lines
    elif what.is_one and what.count is None:
        yield [typed(what.text)]
    else:
        number = 0
        while what.count is None or number < what.count:
            number += 1
            yield [typed(filled(what.text, number, datetime.now(UTC)))]
            if what.rate is None:
                await asyncio.sleep(0)


def headers_of(texts: Sequence[str]) -> dict[str, str]:
    """The headers of `NAME=VALUE` texts. Raises `UserError`."""
    headers: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--header: invalid {text!a:.80} (expected NAME=VALUE)", USAGE)
        if name in headers:
            raise UserError(f"--header: {name!a:.80} occurs twice", USAGE)
        headers[name] = value
    return headers


def _content(file: Path) -> bytes:
    """Raises `UserError`."""
    with file.open("rb") as stream:
        content = stream.read(MESSAGE_BYTES_MAX + 1)
    if len(content) > MESSAGE_BYTES_MAX:
        raise UserError(f"{file} is too long for a message (limit {MESSAGE_BYTES_MAX} bytes)")
    return content


def filled(text: str, number: int, now: datetime) -> str:
    """Replace the placeholders of the text by the number of the message, the time and a random number."""
    values = {
        "n": lambda: str(number),
        "time": lambda: now.isoformat(timespec="milliseconds"),
        "random": lambda: secrets.token_hex(4),
    }
    return PLACE.sub(lambda place: values[place[1]](), text)


async def paced(batches: AsyncIterator[Sequence[bytes]], rate: float | None) -> AsyncIterator[Sequence[bytes]]:
    """The same messages, one at a time and at most `rate` per second, if a rate is given."""
    if rate is None:
        async for batch in batches:
            yield batch
        return
    loop = asyncio.get_running_loop()
    due = loop.time()
    async for batch in batches:
        for each in batch:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = max(due, loop.time() - LATE_S) + 1 / rate
            yield [each]


async def acknowledged(client: Client) -> None:
    """Wait until all messages are numbered. Raises `UserError` if a signal comes first."""
    try:
        await client.flush()
    except asyncio.CancelledError:
        raise UserError("ended by a signal before every line was acknowledged; some may not be published") from None


@contextlib.contextmanager
def progress(what: What = What()) -> Iterator[Callable[[int], None]]:
    """Show a counter on stderr, if it is a terminal and the lines are not typed there."""
    if not sys.stderr.isatty() or what.is_one or (what.text is None and sys.stdin.isatty()):
        yield lambda sent: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} published"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("published", total=None)
        yield lambda sent: bar.update(task, completed=sent)
