"""What a node's process is told at its start, out of the configuration and of what is the node's own.

Owns which key becomes which word of a spec. Who chooses addresses and numbers, and runs the process, is elsewhere
(`control/cluster/supervisor.py`, `control/cluster/daemon.py`).
"""

import secrets
from dataclasses import dataclass
from typing import Any, Final

import structlog

from control.cluster.instance import Folder, check, folder
from control.config.options import SQLITE, ClientOptions, Config, Gateway, Proxy, Role, Router
from control.host import files
from control.registry import Snapshot
from control.registry.places import MAIN
from plane.spec import Fault, Kept, Registration, Spec

DRAIN_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Own:
    """What a node has for itself. `files`: what its files are called in the folder."""

    role: Role
    files: str
    node: int
    epoch: int
    partition: int
    bind: tuple[str, int] | None
    link_bind: tuple[str, int]
    admin: tuple[str, int]
    cluster: str = MAIN


def spec(
    config: Config,
    place: Folder,
    own: Own,
    placement: Snapshot,
    registration: Registration | None = None,
    faults: list[Fault] | None = None,
) -> Spec:
    """What the node's process is told. With a registry only the numbers of partitions of the placement count."""
    section = config.role(own.role)
    client = own.bind is not None
    arena_mib: int | None = getattr(section, "arena_mib", None)
    return Spec(
        instance=config.instance.name,
        role=own.role,
        node=own.node,
        epoch=own.epoch,
        bind=own.bind,
        link_bind=own.link_bind,
        admin=own.admin,
        placement_epoch=0 if registration else placement.epoch,
        nodes=[] if registration else placement.entries(),
        partitions=placement.partitions(),
        registry=registration,
        database=_kept(config, place, own),
        node_key_file=absolute(config.cluster.node_key_file) or str(place.node_key),
        name_key_file=absolute(config.cluster.names_file) or str(place.name_key),
        server_key_file=str(place.server_key(own.files)) if client else None,
        reset_secret_file=str(place.reset_secret) if client else None,
        token_file=token_file(config, place) if client else None,
        recv_buffer=section.recv_buffer_bytes,
        send_buffer=section.send_buffer_bytes,
        arena_bytes=None if arena_mib is None else arena_mib << 20,
        payload_bytes=section.payload_bytes,
        keepalive_ms=section.keepalive_ms if isinstance(section, ClientOptions) else None,
        idle_timeout_ms=section.idle_timeout_ms if isinstance(section, ClientOptions) else None,
        membership_again_ms=section.membership_again_ms if isinstance(section, Gateway) else None,
        memberships_max=section.memberships_max if isinstance(section, Router) else None,
        age_every=section.age_every if isinstance(section, Proxy) else None,
        paced_namespaces=[name for name, space in config.namespaces.items() if space.flow == "paced"],
        faults=faults,
        seed=config.faults.seed + own.node if config.faults.seed else secrets.randbits(63),
        drain_ms=DRAIN_MS,
        **live(config, place, own.role),
        log_format=config.log.format,
    )


def live(config: Config, place: Folder, role: Role) -> dict[str, Any]:
    """Those words of a spec that a running node takes others of."""
    section, cluster = config.role(role), config.cluster
    return {
        "key_id": cluster.key_id,
        "cluster_secret_file": absolute(cluster.secret_file) or str(place.cluster_secret),
        "other_key_id": cluster.other_key_id,
        "other_secret_file": absolute(cluster.other_secret_file),
        "identity": cluster.identity,
        "nodes_file": absolute(cluster.nodes_file),
        "jwt_secret_file": jwt_secret_file(config, place) if isinstance(section, ClientOptions) else "",
        "command_rate": section.command_rate if isinstance(section, Proxy) else None,
        "command_burst": section.command_burst if isinstance(section, Proxy) else None,
        "history_max": section.history_max if isinstance(section, Gateway) else None,
        "backoff_ms": config.clients.backoff_ms if isinstance(section, ClientOptions) else None,
        "backoff_max_ms": config.clients.backoff_max_ms if isinstance(section, ClientOptions) else None,
        "sessions_max": section.sessions_max if isinstance(section, ClientOptions) else None,
        "accept_rate": section.accept_rate if isinstance(section, ClientOptions) else None,
        "weight": config.serve.weight if isinstance(section, ClientOptions) else None,
        "log_level": config.log.level,
    }


def registration(
    config: Config, place: Folder, own: Own, name: str, client: tuple[str, int] | None, public_key: str
) -> Registration:
    """As what it registers: under this name; clients reach it there, and check it by this key."""
    registry = config.registry
    return Registration(
        url=registry.url,
        folder=_registry_folder(place, registry.url),
        name=name,
        partition=own.partition,
        cluster=own.cluster,
        client=client,
        public_key=public_key,
        session_ms=registry.session_ms,
        auth=registry.auth,
        user=registry.user,
        password_file=absolute(registry.password_file),
        cut_off_ms=registry.cut_off_ms,
    )


def reader(config: Config, url: str) -> Registration:
    """How a registry is read by who is nobody in it."""
    registry = config.registry
    return Registration(
        url=url,
        folder=_registry_folder(folder(config), url),
        name="",
        partition=0,
        client=None,
        public_key="",
        session_ms=registry.session_ms,
        auth=registry.auth,
        user=registry.user,
        password_file=absolute(registry.password_file),
    )


def _registry_folder(place: Folder, url: str) -> str:
    if url == "embedded":  # whoever serves it says who the nodes are
        check(place)
    return str(place.path)


def secret_files(config: Config) -> list[str]:
    """The files with secrets that the configuration names. Raises `ConfigError`."""
    cluster = config.cluster
    named = (
        cluster.secret_file,
        cluster.other_secret_file,
        cluster.names_file,
        cluster.token_file,
        cluster.jwt_secret_file,
        cluster.node_key_file,
        config.registry.password_file,
        config.database.password_file,
    )
    return [absolute(file) for file in named if file]


def warn_of_secrets(config: Config, log: structlog.typing.FilteringBoundLogger) -> None:
    """Say in the log of which files more may know than should."""
    for file in files.open_to_all(secret_files(config)):
        log.warning("everybody on this machine may read or change a secret", file=file, mend=f"chmod o= {file}")


def token_file(config: Config, place: Folder) -> str:
    """Where the credential of clients is."""
    return absolute(config.cluster.token_file) or str(place.token)


def jwt_secret_file(config: Config, place: Folder) -> str:
    """Where the secrets of users' tokens are; empty where there are none."""
    made = str(place.jwt_secret) if place.jwt_secret.exists() else ""
    return absolute(config.cluster.jwt_secret_file) or made


def absolute(file: str) -> str:
    """Empty stays empty. Raises `ConfigError`."""
    return file and str(files.absolute(file))


def _kept(config: Config, place: Folder, own: Own) -> Kept | None:
    database = config.database
    if not database.url or own.role != "router":
        return None
    return Kept(
        url=f"sqlite:///{place.memberships}" if database.url == SQLITE else database.url,
        password_file=absolute(database.password_file),
        cluster=config.instance.name,
        partition=own.partition,
    )
