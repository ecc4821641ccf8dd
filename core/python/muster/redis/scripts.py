"""Runs a script at a Redis: by its digest, and with its text where the Redis does not know it. Owns no connection."""

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from hashlib import sha1
from typing import Any

from redis.exceptions import NoScriptError

Execute = Callable[..., Awaitable[Any]]
"""Sends one command and returns the answer. `NoScriptError` passes through it."""


async def run(execute: Execute, script: str, keys: Sequence[Any], arguments: Sequence[Any], **where: Any) -> Any:
    """The answer of a script. `where`: options of `execute`."""
    try:
        return await execute("EVALSHA", _digest(script), len(keys), *keys, *arguments, **where)
    except NoScriptError:
        return await execute("EVAL", script, len(keys), *keys, *arguments, **where)


@lru_cache(maxsize=256)
def _digest(script: str) -> str:
    return sha1(script.encode(), usedforsecurity=False).hexdigest()
