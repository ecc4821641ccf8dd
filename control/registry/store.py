"""The tree itself, with its sessions: the state of the embedded server. No I/O and no clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from muster_server.control.registry.tree import (
    ANY,
    NODES_MAX,
    TREE_BYTES_MAX,
    BadVersion,
    Check,
    Create,
    Delete,
    Entry,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Refused,
    Result,
    Set,
    parent,
)

NOBODY: Final = 0
"""The owner of persistent nodes."""


@dataclass(slots=True)
class _Node:
    data: bytes = b""
    version: int = 0
    owner: int = NOBODY
    made: int = 0
    names: dict[str, None] = field(default_factory=dict)


class _Saved(msgspec.Struct, array_like=True):
    path: str
    data: bytes
    version: int
    owner: int
    made: int


_SAVED: Final = msgspec.msgpack.Decoder(list[_Saved])


class Store:
    """Nodes by path. `on_change` is called with the paths that a transaction changed."""

    def __init__(self) -> None:
        self.on_change: Callable[[Sequence[str]], None] = lambda paths: None
        self._nodes = {"/": _Node()}
        self._bytes = 0

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Entry | None:
        """Read one node."""
        node = self._nodes.get(path)
        return None if node is None else Entry(node.data, node.version)

    def children(self, path: str) -> dict[str, Entry]:
        """Read the nodes right below a path."""
        node = self._nodes.get(path)
        if node is None:
            return {}
        above = path.rstrip("/")
        return {name: Entry(below.data, below.version) for name, below in self._below(above, node)}

    def _below(self, above: str, node: _Node) -> list[tuple[str, _Node]]:
        return [(name, self._nodes[f"{above}/{name}"]) for name in sorted(node.names)]

    def owned(self, session: int) -> list[str]:
        """The ephemeral nodes of this session."""
        return [path for path, node in self._nodes.items() if node.owner == session != NOBODY]

    # --- writing ------------------------------------------------------------------------------------------------------

    def apply(self, session: int, operations: Sequence[Operation]) -> list[Result]:
        """Apply all operations or none. Raises `TreeError`; the operations have been checked."""
        undo: list[Callable[[], None]] = []
        changed: list[str] = []
        try:
            results = [self._apply(session, each, undo, changed) for each in operations]
        except BaseException:
            for step in reversed(undo):
                step()
            raise
        if changed:
            self.on_change(changed)
        return results

    def end(self, session: int) -> None:
        """Remove the nodes of a session."""
        changed = self.owned(session)
        for path in changed:
            self._remove(path)
        if changed:
            self.on_change(changed)

    def _apply(self, session: int, each: Operation, undo: list[Callable[[], None]], changed: list[str]) -> Result:
        match each:
            case Create():
                return self._create(session, each, undo, changed)
            case Set(path, data):
                node = self._at(each)
                before = node.data, node.version

                self._room(path, len(data) - len(node.data))
                self._hold(node, data, node.version + 1)
                undo.append(lambda: self._hold(node, *before))
                changed.append(path)
                return node.version
            case Delete(path):
                node = self._at(each)
                if node.names or path == "/":
                    raise NotEmpty(path)
                self._remove(path)
                undo.append(lambda: self._add(path, node))
                changed.append(path)
            case Check():
                self._at(each)
        return None

    def _at(self, each: Set | Delete | Check) -> _Node:
        node = self._nodes.get(each.path)
        if node is None:
            raise NoNode(each.path)
        if each.version not in {ANY, node.version}:
            raise BadVersion(each.path)
        return node

    def _create(self, session: int, each: Create, undo: list[Callable[[], None]], changed: list[str]) -> str:
        above = parent(each.path)
        if above not in self._nodes:
            self._create(NOBODY, Create(above), undo, changed)
        over = self._nodes[above]
        if over.owner != NOBODY:
            raise Refused(f"{above} is ephemeral and cannot have children")
        path = f"{each.path}{over.made:010d}" if each.sequence else each.path
        if path in self._nodes:
            raise NodeExists(path)
        if len(self._nodes) >= NODES_MAX:
            raise Refused(f"{path}: too many nodes (limit {NODES_MAX})")
        self._room(path, len(path) + len(each.data))
        self._add(path, _Node(each.data, owner=session if each.ephemeral else NOBODY))
        over.made += 1
        undo.append(lambda: self._remove(path))
        changed.append(path)
        return path

    def _room(self, path: str, by: int) -> None:
        if by > 0 and self._bytes + by > TREE_BYTES_MAX:
            raise Refused(f"{path}: the tree is full (limit {TREE_BYTES_MAX >> 20} MiB)")

    def _hold(self, node: _Node, data: bytes, version: int) -> None:
        self._bytes += len(data) - len(node.data)
        node.data, node.version = data, version

    def _add(self, path: str, node: _Node) -> None:
        self._nodes[path] = node
        self._nodes[parent(path)].names[path.rpartition("/")[2]] = None
        self._bytes += len(path) + len(node.data)

    def _remove(self, path: str) -> None:
        node = self._nodes.pop(path)
        del self._nodes[parent(path)].names[path.rpartition("/")[2]]
        self._bytes -= len(path) + len(node.data)

    # --- on disk ------------------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The whole content."""
        every = [
            _Saved(path, node.data, node.version, node.owner, node.made) for path, node in sorted(self._nodes.items())
        ]
        return msgspec.msgpack.encode(every)

    def load(self, dumped: bytes) -> None:
        """Fill an empty store from a dump. Raises `msgspec.MsgspecError`."""
        for each in _SAVED.decode(dumped):
            node = _Node(each.data, each.version, each.owner, each.made)
            if each.path == "/":
                self._nodes["/"] = node
            else:
                self._add(each.path, node)
