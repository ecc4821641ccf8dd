"""A small tree of nodes that processes share, as ZooKeeper has it: the words that its three versions speak.

Level triggered: a watch says that something may have changed, never what; who is told reads again. Every call ends in
time. Owns no connection and no meaning of what is stored.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from control.config.zookeeper import check_path

ANY: Final = -1
"""A version that every node has."""
CALL_S: Final = 5.0
"""Within this a call has its answer, or raises `Unavailable`."""
DATA_MAX: Final = 64 << 10
TRANSACTION_MAX: Final = 192
"""Operations: a step of the widest growth rests on its record and a replica of each of 128 new partitions, at least."""
NODES_MAX: Final = 1 << 16
TREE_BYTES_MAX: Final = 16 << 20
"""Paths and data together: 4,096 nodes of 4 KiB. A role's entry has some 400 B."""


Session = Literal["connected", "suspended", "expired"]
"""`suspended`: no server answers, what is ephemeral may still stand. `expired`: it is gone, or must be taken for gone."""


class TreeError(Exception):
    """A call that did not do what it was to do."""


class NoNode(TreeError):
    """There is none at this path."""


class NodeExists(TreeError):
    """There is one at this path."""


class BadVersion(TreeError):
    """The node changed since it was read."""


class NotEmpty(TreeError):
    """The node has children."""


class Refused(TreeError):
    """The server does not allow it, or it is larger than allowed."""


class Denied(Refused):
    """The server does not know who asks, or does not allow it to that one."""


class Unavailable(TreeError):
    """No server answered. Whether a write was done is unknown: look before it is repeated."""


class Entry(NamedTuple):
    """What a node holds. Versions begin at 0 and grow by one with each `Set`."""

    data: bytes
    version: int


class Create(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Make a node and what is missing above it. `sequence` adds ten growing digits; `ephemeral` ends with the session."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class Set(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Replace what the node holds."""

    path: str
    data: bytes
    version: int = ANY


class Delete(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Remove a node without children."""

    path: str
    version: int = ANY


class Check(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Do nothing, if the node is there and has this version."""

    path: str
    version: int = ANY


Operation = Create | Set | Delete | Check
Result = str | int | None
"""The path made by `Create`, the new version after `Set`."""


class Tree(Protocol):
    """One process's view of the shared tree. Used in one loop."""

    @property
    def session(self) -> Session:
        """How the connection stands."""

    def on_session(self, callback: Callable[[Session], None]) -> None:
        """Call this in the loop at each change of `session`. After `expired` a new session is sought by itself."""

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call this in the loop when what was read at or below `path` may have changed, and after each connect.

        What is returned ends it.
        """

    async def start(self) -> None:
        """Begin to connect, and go on trying until `close`."""

    async def close(self) -> None:
        """End the session, and with it what is ephemeral, if a server answers."""

    async def get(self, path: str) -> Entry | None:
        """Read one node, of the server."""

    async def children(self, path: str) -> Mapping[str, Entry]:
        """Read the nodes right below `path` by their names; none where `path` is missing.

        Of what is watched it may be what was read before, as long as nobody told of a change.
        """

    def forget(self) -> None:
        """Ask the server for everything that is read from now on: a watch that it owed may have been lost."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        """Do all of it or nothing."""

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Make a node and return its path."""
        (made,) = await self.transaction([Create(path, data, ephemeral, sequence)])
        return str(made)

    async def set(self, path: str, data: bytes, version: int = ANY) -> int:
        """Replace what a node holds and return its new version."""
        (after,) = await self.transaction([Set(path, data, version)])
        assert isinstance(after, int)
        return after

    async def delete(self, path: str, version: int = ANY) -> None:
        """Remove a node."""
        await self.transaction([Delete(path, version)])


def parent(path: str) -> str:
    """The path above."""
    return path.rpartition("/")[0] or "/"


def covers(above: str, path: str) -> bool:
    """Whether `path` is `above` or below it."""
    return above in {"/", path} or path.startswith(above + "/")


def check(operations: Sequence[Operation]) -> None:
    """Raise `ValueError` or `Refused` for what no version of the tree takes."""
    if not 0 < len(operations) <= TRANSACTION_MAX:
        raise ValueError(f"a transaction has 1 to {TRANSACTION_MAX} operations, not {len(operations)}")
    for each in operations:
        check_path(each.path, prefix=isinstance(each, Create) and each.sequence)
        if isinstance(each, Create | Set) and len(each.data) > DATA_MAX:
            raise Refused(f"{each.path}: {len(each.data)} bytes, {DATA_MAX} are the most")
