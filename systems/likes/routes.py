"""The path of a command to the node that has its item: connections, the table of slots, and retries.

Owns which failures may be retried. A command that a node refused was not executed, so it goes to the next owner. A
change without an answer may have been executed: it is not sent twice. Knows no command.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ClusterDownError, MovedError, RedisError, ResponseError, TryAgainError
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import TimeoutError as Late

from muster.redis.connections import server
from muster_server.plane.ownership.errors import Away, Full, StoreError
from muster_server.systems.likes.reach import Denied, Erasing, Reach
from muster_server.systems.likes.slots import SLOTS, slot

WAIT_S: Final = 5.0
LOOK_S: Final = 1.0
"""Limit of reading the table of slots from one node, in seconds."""
PATIENCE_S: Final = 6.0
"""Seconds after which a dead node's items are served again."""
AGAIN_S: Final = 0.1
NOT_DONE: Final = (MovedError, TryAgainError, ClusterDownError)
ALONE: Final = "cluster support disabled"
ERASING: Final = "ERASING "
NOT_WHOLE: Final = "CLUSTERDOWN some partitions do not answer now; try again later"
Address = tuple[str, int]
SlotRange = tuple[int, int, Address]
"""The first and the last slot, and the address of their node."""
Command = Sequence[Any]


class Routes:
    """All connections of one client. Raises `StoreError`."""

    def __init__(self, reach: Reach, connections: int) -> None:
        self._reach, self._connections = reach, connections
        self._clients: dict[Address, Redis] = {}
        self._slots: list[SlotRange] | None = None
        """The table of slots; None: unknown."""
        self._alone = False
        self._looking = asyncio.Lock()
        self._failed = set[Address]()
        """Addresses that did not answer since the table was read, so it may be outdated."""

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()

    async def alone(self) -> bool:
        """Whether one node has all items."""
        await self._table()
        return self._alone

    async def parts(self, keys: Sequence[bytes]) -> list[list[int]]:
        """The places of the keys, those of one partition together: one command may name all of them."""
        if await self.alone():
            return [list(range(len(keys)))]
        ranges = sorted(self._slots or ())
        starts = [first for first, _, _ in ranges]
        parts: dict[tuple[int, int], list[int]] = {}
        for place, key in enumerate(keys):
            number = slot(key)
            at = bisect_right(starts, number) - 1
            owned = at >= 0 and number <= ranges[at][1]  # a slot without an owner may come to any partition
            parts.setdefault((at, -1) if owned else (-1, number), []).append(place)
        return list(parts.values())

    async def ask(
        self, commands: Sequence[Command], *, changes: bool = False, keys: Sequence[bytes] | None = None
    ) -> list[Any]:
        """Ask the owner of each command's key, in this order for each item; refusals are among the answers.

        `keys`: the key of each command; by default its first argument.
        """
        if await self.alone():
            try:
                said = await self._told(self._reach.doors[0], commands)
            except (RedisError, OSError) as error:
                raise translated(error) from None
            return [translated(each) if isinstance(each, Exception) else each for each in said]
        if self._failed:
            await self._look()
        owned = [command[1] for command in commands] if keys is None else keys
        answers: list[Any] = [None] * len(commands)
        left = list(range(len(commands)))
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while left:
            by_owner: dict[Address | None, list[int]] = {}
            for place in left:
                by_owner.setdefault(self._owner(owned[place]), []).append(place)
            results = await asyncio.gather(
                *(self._tried(owner, [commands[place] for place in at], changes) for owner, at in by_owner.items())
            )
            left = []
            for at, said in zip(by_owner.values(), results, strict=True):
                for place, answer in zip(at, said, strict=True):
                    answers[place] = answer
                    if isinstance(answer, NOT_DONE):
                        left.append(place)
            if left and asyncio.get_running_loop().time() > deadline:
                break
            if left:
                left.sort()
                await asyncio.sleep(AGAIN_S)
                await self._look()
        return [translated(each) if isinstance(each, Exception) else each for each in answers]

    async def everywhere(self, command: Command) -> list[Any]:
        """The answer of each node. Raises `Full` unless all answer: a merged answer must be complete."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            parts = await self._table()
            said = await asyncio.gather(
                *(self._tried(owner, [("CLUSTER", "MYID"), command], False) for _, _, owner in parts)
            )
            if _whole(parts, said):
                return [translated(each) if isinstance(each, Exception) else each for _, each in said]
            if asyncio.get_running_loop().time() > deadline:
                raise Full(NOT_WHOLE)
            await asyncio.sleep(AGAIN_S)
            await self._look()

    async def partitions(self) -> list[tuple[int, int]]:
        """The slots of each partition, in order; one with all of them if one node has all items."""
        if await self.alone():
            return [(0, SLOTS - 1)]
        return sorted((first, last) for first, last, _ in await self._table())

    async def each(self, command: Command) -> list[Any]:
        """As `everywhere`, also if one node has all items. Raises `StoreError` for a refusal."""
        said = await (self.ask([command]) if await self.alone() else self.everywhere(command))
        return [raised(each) for each in said]

    def _owner(self, key: Any) -> Address | None:
        number = slot(key if isinstance(key, bytes) else str(key).encode())
        return next((owner for first, last, owner in self._slots or () if first <= number <= last), None)

    async def _tried(self, owner: Address | None, commands: Sequence[Command], changes: bool) -> list[Any]:
        """The answers; commands that were not executed have `NOT_DONE`. Raises `StoreError` if it is unknown whether
        one was."""
        if owner is None:
            return [ClusterDownError("CLUSTERDOWN no node has the slot now; try again later")] * len(commands)
        try:
            return await self._told(owner, commands)
        except (RedisError, OSError) as error:
            self._failed.add(owner)
            unsent = isinstance(error, (Unreachable, OSError)) and "connecting to" in str(error)
            if isinstance(error, (Unreachable, Late, OSError)) and (unsent or not changes):
                return [ClusterDownError(f"CLUSTERDOWN {error}")] * len(commands)
            raise translated(error) from None

    async def _told(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        async with self._client(address).pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            said: list[Any] = await pipe.execute(raise_on_error=False)
        return said

    def _client(self, address: Address) -> Redis:
        if address not in self._clients:
            reach, tls = self._reach, dict[str, Any]()
            if reach.ca_file:  # only this certificate is accepted, whatever name it has
                tls = {"ssl": True, "ssl_ca_certs": reach.ca_file, "ssl_check_hostname": False}
            self._clients[address] = server(
                host=address[0],
                port=address[1],
                username=reach.user,
                password=reach.password,
                max_connections=self._connections,
                socket_timeout=WAIT_S,
                socket_connect_timeout=WAIT_S,
                **tls,
            )
        return self._clients[address]

    async def _table(self) -> list[SlotRange]:
        if self._slots is None:
            await self._look(first=True)
        assert self._slots is not None
        return self._slots

    async def _look(self, *, first: bool = False) -> None:
        """Read the table of slots from any node."""
        async with self._looking:
            if first and self._slots is not None:
                return
            known = {owner for _, _, owner in self._slots or ()} - set(self._reach.doors)
            addresses = sorted([*self._reach.doors, *known], key=lambda address: address in self._failed)
            failed: Exception | None = None
            for address in addresses:
                try:
                    async with asyncio.timeout(LOOK_S):
                        said: Any = await self._client(address).execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
                except ResponseError as error:
                    if ALONE not in str(error):
                        raise translated(error) from None
                    self._slots, self._alone = [], True
                    return
                except (RedisError, OSError, TimeoutError) as error:
                    failed = error
                    self._failed.add(address)
                    continue
                self._slots, self._alone = _parsed(said), False
                self._failed = set()
                return
        assert failed is not None
        raise translated(failed)


def _whole(parts: Sequence[SlotRange], said: Sequence[Sequence[Any]]) -> bool:
    """Whether each slot is in one part, and each part's node confirms it: an address may belong to another part by now."""
    next_slot = 0
    for first, last, _ in sorted(parts):
        if first != next_slot:
            return False
        next_slot = last + 1
    names = {str(name) for name, _ in said}
    done = not any(isinstance(each, NOT_DONE) for answers in said for each in answers)
    return done and next_slot == SLOTS and len(names) == len(parts)


def _parsed(said: Any) -> list[SlotRange]:
    """Parse Redis's answer, or the library's form of it."""
    if isinstance(said, dict):
        return [(first, last, (_text(of["primary"][0]), of["primary"][1])) for (first, last), of in said.items()]
    return [(first, last, (_text(primary[0]), primary[1])) for first, last, primary, *_ in said]


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode()


def raised(said: Any) -> Any:
    """An answer; raises it if it is a refusal."""
    if isinstance(said, StoreError):
        raise said
    return said


def translated(error: Exception) -> StoreError:
    """Convert a failure to a `StoreError`."""
    text = str(error) or type(error).__name__
    if isinstance(error, StoreError):
        return error
    if text.startswith(ERASING):
        return Erasing(text.removeprefix(ERASING))
    if isinstance(error, AuthenticationError) or text.startswith(("NOAUTH", "WRONGPASS")):
        return Denied(text)
    if isinstance(error, (Unreachable, Late, OSError)):
        return Away(text)
    if isinstance(error, NOT_DONE) or (
        isinstance(error, ResponseError) and text.startswith(("MISCONF", "CLUSTERDOWN"))
    ):
        return Full(text)
    return StoreError(text)
