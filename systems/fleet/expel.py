"""Ends sessions at the local mosquitto, which has no call for that. Must not know why they end."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from muster._mqtt import Connection, MqttError, connect_packet
from muster_server.systems.fleet.broker import password_line, users

EXPEL_S: Final = 5
AGAIN_S: Final = 0.05


async def expel(folder: Path, bind: tuple[str, int], names: Collection[str], reread: Callable[[], None]) -> set[str]:
    """End the open sessions of these clients: one with the same name takes the place of each, and ends. For that each
    name has a password for a moment. `reread`: lets mosquitto read its files. Returns the names whose sessions may be
    open still."""
    words = {name: secrets.token_urlsafe(18) for name in names}
    with users(folder) as lines:
        before = {name: lines.get(name) for name in words}
        lines.update({name: password_line(name, word) for name, word in words.items()})
    reread()
    try:
        ended = await asyncio.gather(*(_takes_over(bind, name, word) for name, word in words.items()))
    finally:
        with users(folder) as lines:
            for name, line in before.items():
                lines.pop(name, None)
                lines.update({} if line is None else {name: line})
        reread()
    return {name for name, done in zip(words, ended, strict=True) if not done}


async def _takes_over(bind: tuple[str, int], name: str, word: str) -> bool:
    """Whether a session with this name was opened, and closed."""
    hello = connect_packet(name, name, word, EXPEL_S)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(EXPEL_S):
            while True:  # until mosquitto has read the password
                _, session = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(hello, lambda _topic, _payload: None, lambda: None), *bind
                )
                try:
                    await session.opened
                    return True
                except MqttError:
                    await asyncio.sleep(AGAIN_S)
                finally:
                    session.close()
    return False
