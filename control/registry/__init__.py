"""The registry: a small tree in two versions (embedded, ZooKeeper), and the map that is read from it."""

from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import Node, Snapshot

__all__ = ["Directory", "Node", "Snapshot"]
