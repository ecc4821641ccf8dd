"""A small tree of nodes that processes share, modelled on ZooKeeper's: the interface of its versions.

Level triggered: a watch reports that something may have changed, never what; its owner reads again. Every call has a
time limit. Owns no connection and no meaning of the stored values.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from muster_server.control.config.zookeeper import check_path

ANY: Final = -1
"""A version that matches any node."""
CALL_S: Final = 5.0
"""Seconds within which a call has its answer, or raises `Unavailable`."""
DATA_MAX: Final = 64 << 10
TRANSACTION_MAX: Final = 192
"""Limit of operations: a step of the widest growth checks its record and a replica of each of 128 new partitions."""
NODES_MAX: Final = 1 << 16
TREE_BYTES_MAX: Final = 16 << 20
"""Limit of paths and data together, in bytes: 4,096 nodes of 4 KiB. A role's entry has about 400 B."""


Session = Literal["connected", "suspended", "expired"]
"""`suspended`: no server answers; ephemeral nodes may still exist. `expired`: they are deleted, or must be assumed to
be."""


class TreeError(Exception):
    """A call failed."""


class NoNode(TreeError):
    """There is no node at this path."""


class NodeExists(TreeError):
    """There is a node at this path already."""


class BadVersion(TreeError):
    """The node changed since it was read."""


class NotEmpty(TreeError):
    """The node has children."""


class Refused(TreeError):
    """The server does not allow the call, or the data are too large."""


class Denied(Refused):
    """The server does not know this user, or does not allow it the call."""


class Unavailable(TreeError):
    """No server answered. It is unknown whether a write was done: read before you repeat it."""


class Entry(NamedTuple):
    """The content of a node. Versions begin at 0 and grow by one with each `Set`."""

    data: bytes
    version: int


class Create(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Create a node and its missing parents. `sequence` appends ten growing digits; an `ephemeral` node ends with the
    session."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class Set(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Replace a node's data."""

    path: str
    data: bytes
    version: int = ANY


class Delete(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Remove a node without children."""

    path: str
    version: int = ANY


class Check(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Fail the transaction unless the node exists and has this version."""

    path: str
    version: int = ANY


Operation = Create | Set | Delete | Check
Result = str | int | None
"""The path made by `Create`, the new version after `Set`."""


class Tree(Protocol):
    """One process's view of the shared tree. Used in one loop."""

    @property
    def session(self) -> Session:
        """The state of the connection."""

    def on_session(self, callback: Callable[[Session], None]) -> None:
        """Call this in the loop at each change of `session`. After `expired` the tree gets a new session by itself."""

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call this in the loop when data at or below `path` may have changed, and after each connect.

        Returns a function that ends the watch.
        """

    async def start(self) -> None:
        """Begin to connect, and retry until `close`."""

    async def close(self) -> None:
        """End the session and its ephemeral nodes, if a server answers."""

    @property
    def requests(self) -> int:
        """The number of requests to the server so far."""

    async def get(self, path: str) -> Entry | None:
        """Read one node from the server."""

    async def peek(self, path: str) -> Entry | None:
        """Read one node from the server, without a watch where watches are kept for each node."""

    async def entry(self, path: str) -> Entry | None:
        """Read one node. For a watched path this may be an earlier answer, as long as no change was reported."""

    async def names(self, path: str) -> Collection[str]:
        """Read the names right below `path`, as `children` does."""

    async def children(self, path: str) -> Mapping[str, Entry]:
        """Read the nodes right below `path` by their names; empty if `path` is missing.

        For a watched path this may be an earlier answer, as long as no change was reported.
        """

    def forget(self) -> None:
        """Read everything from the server from now on, because a watch may have been lost."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        """Apply all operations or none."""

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Make a node and return its path."""
        (made,) = await self.transaction([Create(path, data, ephemeral, sequence)])
        return str(made)

    async def set(self, path: str, data: bytes, version: int = ANY) -> int:
        """Replace a node's data and return its new version."""
        (after,) = await self.transaction([Set(path, data, version)])
        assert isinstance(after, int)
        return after

    async def delete(self, path: str, version: int = ANY) -> None:
        """Remove a node."""
        await self.transaction([Delete(path, version)])


def parent(path: str) -> str:
    """The parent's path."""
    return path.rpartition("/")[0] or "/"


def covers(above: str, path: str) -> bool:
    """Whether `path` is `above` or below it."""
    return above in {"/", path} or path.startswith(above + "/")


def check(operations: Sequence[Operation]) -> None:
    """Raise `ValueError` or `Refused` for operations that no version of the tree accepts."""
    if not 0 < len(operations) <= TRANSACTION_MAX:
        raise ValueError(
            f"invalid number of operations in a transaction: {len(operations)} (expected 1 to {TRANSACTION_MAX})"
        )
    for each in operations:
        check_path(each.path, prefix=isinstance(each, Create) and each.sequence)
        if isinstance(each, Create | Set) and len(each.data) > DATA_MAX:
            raise Refused(f"{each.path}: too long: {len(each.data)} bytes (limit {DATA_MAX})")
