"""Nodes of presence from static specs, without supervisor and registry: a writer, a reader, and gateways in this process.

Owns how they are made and told of each other. Tests use it too; they start and kill the processes as they like.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import structlog

from muster.clock import now_ms
from muster_server._engines import PresenceGatewayEngine
from muster_server.plane.kinds import kind
from muster_server.plane.role import Role
from muster_server.plane.server import Server
from muster_server.plane.spec import Spec
from muster_server.systems.presence.options import PresenceSettings

SECRET: Final = "07" * 32
HOST: Final = "127.0.0.1"
BUFFER: Final = 4 << 20


def settings(
    redis: Sequence[str],
    folder: str,
    *,
    writers: Sequence[int],
    lease_ms: int = 10_000,
    grace_ms: int = 5_000,
    log: str = "",
    password_file: str = "",
) -> PresenceSettings:
    """The settings of all nodes. `redis`: a store for each site, `password_file`: theirs."""
    return PresenceSettings(
        writers=list(writers),
        redis=[[each] for each in redis],
        password_files=[password_file] * len(redis),
        log=log,
        folder=folder,
        site=1,
        shard=0,
        instance="presence",
        grace_ms=grace_ms,
        lease_ms=lease_ms,
        fresh_ms=3_000,
    )


def spec(
    role: str,
    index: int,
    *,
    epoch: int,
    told: PresenceSettings,
    secret_file: str,
    port: int,
    admin: int,
    gateways: Mapping[int, int],
    node: int | None = None,
) -> Spec:
    """One node. `gateways`: their numbers and ports. `node`: its number, if it is no node of `muster up`."""
    of, address = kind(role), (HOST, port)
    return Spec(
        instance="presence",
        role=role,
        node=of.numbers[index] if node is None else node,
        epoch=epoch,
        bind=None if of.linked else address,
        link_bind=address if of.linked else None,
        admin=(HOST, admin),
        placement_epoch=1,
        nodes=[(number, "gateway", HOST, at, 0, "running") for number, at in gateways.items()],
        layers={},
        key_id=1,
        cluster_secret_file=secret_file,
        name_key_file="",
        server_key_file=None,
        reset_secret_file=None,
        token_file=None,
        recv_buffer=BUFFER,
        send_buffer=BUFFER,
        payload_bytes=1_200,
        faults=None,
        seed=index + 1,
        drain_ms=200,
        log_level="info",
        log_format="text",
        settings=told,
    )


class Gateway:
    """A gateway without sessions; it lives while the loop runs, until `end`."""

    def __init__(self, node: int, epoch: int, port: int, version: int = 0, window_ms: int = 50) -> None:
        self.node, self.epoch = node, epoch
        self.ahead_ms = 0
        """Of its wall clock."""
        self.devices: set[tuple[int, str, int]] = set()
        """User, device and this gateway, of all that are online."""
        self._engine = PresenceGatewayEngine(
            {
                "node": node,
                "epoch": epoch,
                "link_bind": (HOST, port),
                "cluster_key": (1, bytes.fromhex(SECRET)),
                "seed": node,
                "recv_buffer": BUFFER,
                "send_buffer": BUFFER,
                "payload_bytes": 1_200,
            },
            msgspec.json.encode({"window_ms": window_ms}),
            version=version,
        )
        self._engine.placement(1, [], (1, 1))
        self._stop = asyncio.Event()
        server = Server(Role(self._engine), structlog.get_logger())
        self._running = asyncio.create_task(server.run(self._stop, 0.0), name=f"gateway {node}")

    def online(self, users: Sequence[int], device: str = "phone", session: int = 1) -> None:
        """These users come."""
        self._engine.online(self._wall_ms(), list(users), device, session)
        self.devices |= {(user, device, self.node) for user in users}

    def offline(self, users: Sequence[int], device: str = "phone", session: int = 1, why: str = "closed") -> None:
        """These users go."""
        self._engine.offline(self._wall_ms(), list(users), device, session, why)
        self.devices -= {(user, device, self.node) for user in users}

    def _wall_ms(self) -> int:
        return now_ms() + self.ahead_ms

    async def end(self) -> None:
        """End it without a word, as a kill does."""
        self._stop.set()
        await self._running
