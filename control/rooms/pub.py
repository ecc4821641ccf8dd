"""`muster pub ROOM`: every line of stdin is a message."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator

from control.cluster.sdk import Client
from control.console import pipes
from control.console.found import Target, connected
from control.console.words import say
from control.errors import UserError
from muster.client import MESSAGE_BYTES_MAX


async def publish(where: Target, room: str) -> int:
    """Publish all lines and wait until the owner has numbered each one."""
    async with connected(where, reads=False) as client:
        with progress() as step:
            sent = await send(client, room, step)
    say(f"published {sent} to {room}")
    return 0


async def send(client: Client, room: str, step: Callable[[int], None]) -> int:
    """Publish each line as it comes, in order. Waits for credit, and at the end until all are numbered."""
    sent = 0
    try:
        async for lines in pipes.lines(0, MESSAGE_BYTES_MAX):
            for line in lines:
                if len(line) > MESSAGE_BYTES_MAX:
                    raise UserError(f"line {sent + 1} has {len(line)} bytes; a message has at most {MESSAGE_BYTES_MAX}")
                while not client.publish_nowait(room, line):
                    await client.writable(room)
                sent += 1
            step(sent)
    except (UserError, asyncio.CancelledError):  # the lines before it, or before a signal, are still published
        await acknowledged(client)
        raise
    await acknowledged(client)
    return sent


async def acknowledged(client: Client) -> None:
    """Wait until all are numbered. Raises `UserError` when a signal comes first."""
    try:
        await client.flush()
    except asyncio.CancelledError:
        raise UserError("ended by a signal before every line was acknowledged; some may not be published") from None


@contextlib.contextmanager
def progress() -> Iterator[Callable[[int], None]]:
    """A counter on stderr, if it is a terminal and stdin is not."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        yield lambda sent: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} published"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("published", total=None)
        yield lambda sent: bar.update(task, completed=sent)
