"""Passwords, hashed by Argon2 in a thread, so that the loop serves others meanwhile."""

import asyncio
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

SHORTEST, LONGEST = 10, 200
AT_ONCE: Final = 2
"""A hash takes 64 MiB and a processor; further logins wait."""
_hasher = PasswordHasher()
_nobody: Final = _hasher.hash("an account that is not there")
_places = asyncio.Semaphore(AT_ONCE)


async def hashed(password: str) -> str:
    """The hash to keep."""
    async with _places:
        return await asyncio.to_thread(_hasher.hash, password)


async def matches(kept: str | None, password: str) -> bool:
    """Return whether the password is right. `None`: there is no account; the check takes as long as with one."""
    async with _places:
        right = await asyncio.to_thread(_verify, kept or _nobody, password)
    return right and kept is not None


def _verify(kept: str, password: str) -> bool:
    try:
        return _hasher.verify(kept, password)
    except (VerificationError, InvalidHashError):
        return False
