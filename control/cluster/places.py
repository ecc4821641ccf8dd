"""The addresses of nodes by role: from the registry's map, or from the record of an instance without a registry."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import muster
from muster.instance import read_token
from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Folder, Process
from muster_server.control.errors import UserError
from muster_server.plane.service import Context
from muster_server.plane.spec import AdminAccess, Spec, SpecError

LOOK_S: Final = 0.5
"""Shortest time between two reads of the record of an instance, in seconds."""

Address = tuple[str, int]


class Places:
    """The addresses by role."""

    def __init__(self, spec: Spec, context: Context, folder: str) -> None:
        self._map = None if spec.registry is None else context.snapshot
        self._folder = Folder(Path(folder))
        self._token = token(spec)
        self._looked, self._found = 0.0, dict[str, list[Address]]()

    def of(self, role: str) -> Callable[[], Sequence[Address]]:
        """The running nodes of a role, looked up at each call."""
        return lambda: self._of(role)

    def _of(self, role: str) -> Sequence[Address]:
        if self._map is not None:
            nodes = self._map().of(role)
            return [node.client for node in nodes if node.client is not None and node.state != "draining"]
        if time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            found: dict[str, list[Address]] = {}
            try:
                for process in instance.find(self._folder).processes:
                    if process.bind:
                        found.setdefault(process.role, []).append(process.bind)
                self._found = found
            except UserError:  # it is starting or ending: the last addresses stay
                pass
        return self._found.get(role, [])

    async def processes(self, access: AdminAccess) -> Sequence[Process]:
        """The running nodes, with their admin addresses. Raises `UserError`."""
        if self._map is None:
            return instance.find(self._folder).processes
        return [instance.registered(node, access) for node in self._map().nodes]

    def address(self, snapshot: Any) -> muster.Address:
        """The gateways and proxies on a map of the registry, with the shared token."""
        return on_map(snapshot, self._token)


def on_map(snapshot: Any, token: bytes) -> muster.Address:
    """The gateways and proxies on a map of the registry, for a client with this token."""
    servers = snapshot.servers()
    gateways, proxies = (
        tuple((host, port, key.hex()) for host, port, key, _ in servers[role]) for role in ("gateway", "proxy")
    )
    return muster.Address(gateways, proxies, token)


def token(spec: Spec) -> bytes:
    """The shared credential of programs of the cluster. Raises `SpecError`."""
    try:
        return read_token(spec.token_file or "")
    except muster.MusterError as error:
        raise SpecError(str(error)) from None
