"""The map as this process believes it: the last reading, without broken values, with nodes that vanished too suddenly.

No I/O and no clock. Three rules. A broken value changes nothing but the log; its last valid one stays. The same applies
to an entry that no key of the cluster certifies, if this process presents credentials to servers. For one number only
the highest epoch counts (I-1). If more than half of a role or a partition vanishes at once without warning, its nodes
are kept for a while: a registry fails more often than half of the processes die.
"""

import bisect
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol

import msgspec
import structlog

from muster_server.control.config.layout import PARTITIONS_MAX
from muster_server.control.config.zookeeper import PATH_MAX
from muster_server.control.registry.places import (
    COUNT,
    Ack,
    Count,
    Node,
    Snapshot,
    Wrong,
    check_partition,
    layer,
    layer_pattern,
    read_count,
    read_node,
)
from muster_server.plane.kinds import partitioned

HOLD_S: Final = 10.0

SAID_MAX: Final = 32
"""Limit of log lines for the refused values of one reading."""

Reading = Mapping[str, bytes]
"""The nodes and counts of the tree, by path below the root."""
Group = tuple[object, ...]


class Judge(Protocol):
    """Decides which servers may receive credentials: `certified.py`."""

    def doubt(self, node: Node) -> str:
        """The reason why an entry is not trusted; empty if it is."""

    def end(self, node: Node) -> str:
        """The reason why a trusted entry is not trusted any more; empty if it still is."""


@dataclass(frozen=True, slots=True)
class _KeptNode:
    node: Node
    until: float
    enough: int
    """If its group has this many nodes, a vanished node is not kept."""


class View:
    """Takes readings, and returns snapshots whose epoch grows with every change and only then."""

    def __init__(
        self,
        log: structlog.typing.FilteringBoundLogger,
        *,
        hold_s: float = HOLD_S,
        epoch: int = 0,
        judge: Judge | None = None,
    ) -> None:
        self.snapshot, self._judge = Snapshot(epoch), judge
        self._log, self._hold_s = log, hold_s
        self._counts: dict[str, Count] = {}
        self._good: dict[str, tuple[bytes, Node]] = {}
        self._paths: dict[int, list[str]] = {}
        """The paths of `_good` by number."""
        self._sizes: dict[Group, int] = {}
        """The number of present nodes by group."""
        self._order: list[int] = []
        """The numbers of the map's nodes."""
        self._present: dict[int, Node] = {}
        self._held: dict[int, _KeptNode] = {}
        self._refused: dict[str, str] = {}
        self.refusals = 0
        """Refused values, counted once per cause."""
        self.doubts = 0
        """Vanished nodes that were kept."""

    @property
    def refused(self) -> Mapping[str, str]:
        """Values that are refused now, with the reason, by path."""
        return self._refused

    @property
    def deadline(self) -> float | None:
        """The time when a kept node is released, unless it returns."""
        return min((held.until for held in self._held.values()), default=None)

    def take(self, reading: Reading, now: float) -> bool:
        """Reconcile with a full reading at `now`. Returns whether the snapshot changed."""
        refused: dict[str, str] = {}
        self._count(reading, refused)
        present = self._numbered(self._readable(reading, refused), refused)
        news = [(path, cause) for path, cause in refused.items() if self._refused.get(path) != cause]
        self.refusals += len(news)
        for path, cause in news[:SAID_MAX]:
            self._log.warning("registry: refused", path=path[:PATH_MAX], cause=cause)
        if len(news) > SAID_MAX:
            self._log.warning("registry: refused further values", values=len(news) - SAID_MAX)
        self._refused = refused
        self._hold(present, now)
        self._present = present
        self._paths, self._sizes = {}, {}
        for path, (_, node) in self._good.items():
            self._paths.setdefault(node.node, []).append(path)
        for node in present.values():
            for group in _groups(node):
                self._sizes[group] = self._sizes.get(group, 0) + 1
        changed = self.pass_time(now)
        self._order = [node.node for node in self.snapshot.nodes]
        return changed

    def pass_time(self, now: float) -> bool:
        """Release nodes that were kept long enough. Returns whether the snapshot changed."""
        for number, held in list(self._held.items()):
            if held.until <= now:
                del self._held[number]
        every = self._every()
        nodes = tuple(_bare(every[number]) for number in sorted(every) if self._has_place(every[number]))
        if nodes == self.snapshot.nodes and self._counts == self.snapshot.counts:
            return False
        self.snapshot = Snapshot(self.snapshot.epoch + 1, nodes, MappingProxyType(dict(self._counts)))
        return True

    @property
    def acks(self) -> Mapping[int, tuple[Ack, ...]]:
        """The acknowledgements of the map's nodes, by number."""
        return {number: node.acks for number, node in self._every().items() if self._has_place(node)}

    def _every(self) -> dict[int, Node]:
        return {number: held.node for number, held in self._held.items()} | self._present

    def _has_place(self, node: Node) -> bool:
        """Whether the node's partition exists. Partitions disappear when their growth is undone; their nodes may exist
        longer."""
        try:
            check_partition(node, self._counts)
        except Wrong:
            return False
        return True

    def again(self, now: float) -> None:
        """The registry did not answer for a while: kept nodes get their whole time again, to register."""
        for number, held in self._held.items():
            self._held[number] = replace(held, until=now + self._hold_s)

    def present(self) -> list[tuple[str, Node]]:
        """The map's nodes that the registry's last reading contains, each with its path."""
        return [(path, node) for path, (_, node) in self._good.items() if self._present.get(node.node) == node]

    def said(self, of: str, but: int) -> set[int]:
        """The numbers of partitions of a layer that its nodes use, except this node (`but`)."""
        nodes = (node for node in self._present.values() if node.role in partitioned() and node.node != but)
        return {node.among for node in nodes if layer(node.role, node.cluster) == of}

    def claims(self, number: int) -> dict[str, Node]:
        """The entries that claim this number, by path."""
        return {path: self._good[path][1] for path in self._paths.get(number, ())}

    # --- a few changes ------------------------------------------------------------------------------------------------

    def change(self, changes: Mapping[str, bytes | None]) -> bool | None:
        """Reconcile with a reading that differs from the last one in these paths only; None: removed.

        Returns whether the snapshot changed; None, and changes nothing, where only a full reading can decide: `take`.
        """
        if self._held or self._refused:
            return None
        news: dict[str, tuple[bytes, Node] | None] = {}
        for path, data in changes.items():
            if path.rpartition("/")[2] == COUNT:
                return None
            before = self._good.get(path)
            if data is None:
                if before is not None:
                    news[path] = None
            elif before is None or before[0] != data:
                try:
                    news[path] = data, self._trusted(read_node(path, data, self._counts))
                except Wrong:
                    return None
        after = self._without_rivals(news)
        if after is None or self._is_sudden(after):
            return None
        for path, good in news.items():
            self._put(path, good)
        return self._place(after)

    def _without_rivals(self, news: Mapping[str, tuple[bytes, Node] | None]) -> dict[int, Node | None] | None:
        """The nodes of the changed numbers; None if a number has, or had, more than one entry."""
        paths: dict[int, set[str]] = {}
        for path, good in news.items():
            old = self._good.get(path)
            for node in (old and old[1], good and good[1]):
                if node is not None:
                    paths.setdefault(node.node, set(self._paths.get(node.node, ())))
            if old is not None:
                paths[old[1].node].discard(path)
            if good is not None:
                paths[good[1].node].add(path)
        after: dict[int, Node | None] = {}
        for number, every in paths.items():
            if len(every) > 1 or len(self._paths.get(number, ())) > 1:
                return None
            good = next(((news.get(path) or self._good[path]) for path in every), None)
            after[number] = None if good is None else good[1]
        return after

    def _is_sudden(self, after: Mapping[int, Node | None]) -> bool:
        """Whether more than half of a group may have vanished at once."""
        lost: dict[Group, int] = {}
        for number, node in after.items():
            before = self._present.get(number)
            if node is None and before is not None and before.state != "draining":
                for group in _groups(before):
                    lost[group] = lost.get(group, 0) + 1
        return any(2 * count > self._sizes[group] for group, count in lost.items())

    def _put(self, path: str, good: tuple[bytes, Node] | None) -> None:
        old = self._good.pop(path, None)
        if old is not None:
            self._paths[old[1].node].remove(path)
            if not self._paths[old[1].node]:
                del self._paths[old[1].node]
        if good is not None:
            self._good[path] = good
            self._paths.setdefault(good[1].node, []).append(path)

    def _place(self, after: Mapping[int, Node | None]) -> bool:
        """Change these nodes of the map. Returns whether it changed."""
        nodes: list[Node] | None = None
        for number, node in after.items():
            before = self._present.pop(number, None)
            if node is not None:
                self._present[number] = node
            for each, by in ((before, -1), (node, 1)):
                for group in _groups(each) if each is not None else ():
                    self._sizes[group] = self._sizes.get(group, 0) + by
            new = None if node is None else _bare(node)
            if new == (None if before is None else _bare(before)):
                continue
            nodes = list(self.snapshot.nodes) if nodes is None else nodes
            at = bisect.bisect_left(self._order, number)
            there = at < len(self._order) and self._order[at] == number
            if new is None:
                if there:
                    del self._order[at], nodes[at]
            elif there:
                nodes[at] = new
            else:
                self._order.insert(at, number)
                nodes.insert(at, new)
        if nodes is None:
            return False
        self.snapshot = Snapshot(self.snapshot.epoch + 1, tuple(nodes), self.snapshot.counts)
        return True

    # --- what can be believed ---------------------------------------------------------------------------------------

    def _count(self, reading: Reading, refused: dict[str, str]) -> None:
        for path, data in reading.items():
            of, _, name = path.rpartition("/")
            if name == COUNT:
                before = self._counts.get(of)
                try:
                    if not re.fullmatch(layer_pattern(), of):
                        raise Wrong("unexpected count at this path")
                    count = read_count(data, before)
                    if before is None:
                        _check_known(of, count, reading)
                    else:
                        self._check_served(of, count, before, reading)
                except Wrong as wrong:
                    refused[path] = str(wrong)
                else:
                    self._counts[of] = count

    def _check_served(self, of: str, count: Count, before: Count, reading: Reading) -> None:
        """Check that no rooms are assigned to a partition that never had a replica. Raises `Wrong`.

        A growth has replicas in all partitions before it assigns rooms. A partition that had some got its rooms
        rightly, even if the last one has died since.
        """
        if count.used <= before.used:
            return
        serve = {node.partition for node in self.snapshot.nodes if _serves(node, of)}
        owned = [part for part in range(before.used, count.used) if part % before.used in serve]
        serve |= {node.partition for node in _registered(of, count, reading) if _serves(node, of)}
        if lacking := [part for part in owned if part not in serve]:
            raise Wrong(
                f"{count.used} partitions, but no replica of {lacking[0]} runs, and other partitions have its rooms"
            )

    def _readable(self, reading: Reading, refused: dict[str, str]) -> dict[str, Node]:
        found: dict[str, Node] = {}
        good: dict[str, tuple[bytes, Node]] = {}
        for path, data in reading.items():
            if path.rpartition("/")[2] == COUNT:
                continue
            last = self._good.get(path)
            if last is None or last[0] != data:
                try:
                    last = data, self._trusted(read_node(path, data, self._counts))
                except Wrong as wrong:
                    refused[path] = str(wrong)
            if last is not None and self._judge is not None and (cause := self._judge.end(last[1])):
                refused[path], last = cause, None
            if last is not None:
                good[path] = last
                found[path] = last[1]
        self._good = good
        return found

    def _trusted(self, node: Node) -> Node:
        """Check that a server that receives credentials is trusted. Raises `Wrong`."""
        if self._judge is not None and (cause := self._judge.doubt(node)):
            raise Wrong(cause)
        return node

    def _numbered(self, found: Mapping[str, Node], refused: dict[str, str]) -> dict[int, Node]:
        claims: dict[int, list[tuple[str, Node]]] = {}
        for path, node in found.items():
            claims.setdefault(node.node, []).append((path, node))
        chosen: dict[int, Node] = {}
        for number, every in claims.items():
            best = max(every, key=lambda claim: claim[1].epoch)
            rivals = [path for path, node in every if node is not best[1] and _rivals(node, best[1])]
            if not rivals:
                chosen[number] = best[1]
                continue
            before = self._present.get(number)
            for path, node in every:
                if before is not None and _bare(node) == _bare(before):
                    chosen[number] = node
                else:
                    refused[path] = f"node {number} is also at {', '.join(p for p, _ in every if p != path)}"
        return chosen

    # --- vanished nodes ----------------------------------------------------------------------------------------------

    def _hold(self, present: Mapping[int, Node], now: float) -> None:
        addresses = {(node.host, node.link_port) for node in present.values()}
        sizes: dict[Group, int] = {}
        for node in present.values():
            for group in _groups(node):
                sizes[group] = sizes.get(group, 0) + 1
        for number, held in list(self._held.items()):
            there = number in present or (held.node.host, held.node.link_port) in addresses
            if there or sizes.get(_groups(held.node)[-1], 0) >= held.enough:
                del self._held[number]

        known = {number: held.node for number, held in self._held.items()} | self._present
        were: dict[Group, int] = {}
        missing: dict[Group, int] = {}
        gone: list[Node] = []
        for number, node in known.items():
            absent = number not in present and (node.host, node.link_port) not in addresses
            if absent and node.state != "draining" and number not in self._held:
                gone.append(node)
            for group in _groups(node):
                were[group] = were.get(group, 0) + 1
                missing[group] = missing.get(group, 0) + (absent and node.state != "draining")
        suspect = {group for group, lost in missing.items() if 2 * lost > were[group]}
        kept = [node for node in gone if not suspect.isdisjoint(_groups(node))]
        for node in kept:
            self._held[node.node] = _KeptNode(node, now + self._hold_s, were[_groups(node)[-1]])
        self.doubts += len(kept)
        if kept:
            self._log.warning(
                "registry: more than half of a role vanished at once; keeping its nodes for a while",
                nodes=[node.node for node in kept],
                seconds=self._hold_s,
            )


def _bare(node: Node) -> Node:
    """The node in the form of the map."""
    if not (node.acks or node.among or node.certificate):
        return node
    return msgspec.structs.replace(node, acks=(), among=0, certificate=None)


def _registered(of: str, count: Count, reading: Reading) -> Iterator[Node]:
    """The nodes of a layer that has this many partitions."""
    for path, data in reading.items():
        if path.startswith(f"{of}/partition") and path != f"{of}/{COUNT}":
            with contextlib.suppress(Wrong):
                yield read_node(path, data, {of: count})


def _check_known(of: str, count: Count, reading: Reading) -> None:
    """Check the first count that is read against the numbers that running nodes use. Raises `Wrong`."""
    said = {node.among for node in _registered(of, Count(PARTITIONS_MAX), reading)} - {0}
    if said and count.partitions not in said:
        raise Wrong(f"{count.partitions} partitions, but all registered nodes use {max(said)}")


def _serves(node: Node, of: str) -> bool:
    """Whether the node owns rooms of a layer."""
    return node.role in partitioned() and node.state == "running" and layer(node.role, node.cluster) == of


def _rivals(node: Node, best: Node) -> bool:
    """Whether two entries of one number contradict each other; a lower epoch is merely older."""
    return node.epoch == best.epoch or node.role != best.role


def _groups(node: Node) -> tuple[Group, ...]:
    """The groups of a node: its role, and its partition."""
    if node.role not in partitioned():
        return ((node.role,),)
    of = layer(node.role, node.cluster)
    return ((of,), (of, node.partition))
