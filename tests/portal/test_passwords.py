"""Passwords: hashed beside the loop, so that a server goes on while people log in."""

import asyncio
import concurrent.futures

from portal.accounts import passwords

LOGINS = 8
TURNS_MIN = 200
"""Turns of the loop; a hash on the loop would leave it one for each login."""


def test_the_loop_goes_on_while_passwords_are_hashed() -> None:
    async def measured() -> int:
        hashes = asyncio.gather(*(passwords.matches(None, f"a long password {at}") for at in range(LOGINS)))
        turns = 0
        while not hashes.done():
            await asyncio.sleep(0)
            turns += 1
        assert await hashes == [False] * LOGINS
        return turns

    with concurrent.futures.ThreadPoolExecutor(1) as threads:  # the loop of a browser may run in this one
        assert threads.submit(asyncio.run, measured()).result() > TURNS_MIN
