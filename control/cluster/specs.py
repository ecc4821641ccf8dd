"""Makes the specs of nodes' processes, from the configuration and from each node's own values.

Owns the mapping from keys to fields of a spec. The callers choose addresses and numbers, and run the processes
(`control/cluster/supervisor.py`, `control/cluster/daemon.py`).
"""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import structlog

from muster_server.control.cluster.instance import Folder, check, folder
from muster_server.control.config.options import Config
from muster_server.control.errors import ConfigError
from muster_server.control.host import files
from muster_server.control.registry.places import MAIN, Snapshot
from muster_server.plane.kind import Around
from muster_server.plane.kinds import kind
from muster_server.plane.options import MachineOptions, Section
from muster_server.plane.spec import AdminAccess, Fault, Registration, Spec, SpecError, secret
from muster_server.plane.trust import URLS, revoked, shared_token, signing_secrets

DRAIN_MS: Final = 1_000
"""Limit of a drain beyond the time that a role's own `drain_s` gives it."""
SECRETS: Final = ("password_file", "users_file", "tls_key_file", "token_file")
"""Suffixes of keys of any section that name files with secrets."""
FORM: Final = b"-"
"""A dummy key, to check only whether the users of a file are valid names."""
Programs = Mapping[str, tuple[str, int]]
"""Addresses of the programs that run beside the nodes, by name."""


@dataclass(frozen=True, slots=True)
class Own:
    """A node's own values. `files`: name of its files in the folder."""

    role: str
    files: str
    node: int
    epoch: int
    partition: int
    bind: tuple[str, int] | None
    link_bind: tuple[str, int] | None
    admin: tuple[str, int]
    cluster: str = MAIN


def spec(
    config: Config,
    place: Folder,
    own: Own,
    placement: Snapshot,
    registration: Registration | None = None,
    faults: list[Fault] | None = None,
    programs: Programs = MappingProxyType({}),
) -> Spec:
    """Make a node's spec. With a registry, only the numbers of partitions of the placement count."""
    of = kind(own.role)
    section = config.role(own.role)
    sockets = section if isinstance(section, MachineOptions) else None
    return Spec(
        instance=config.instance.name,
        role=own.role,
        node=own.node,
        epoch=own.epoch,
        bind=own.bind,
        link_bind=own.link_bind,
        admin=own.admin,
        admin_access=admin_access(config),
        placement_epoch=0 if registration else placement.epoch,
        nodes=[] if registration else placement.entries(own.role),
        layers=placement.layers(own.role),
        registry=registration,
        node_key_file=absolute(config.cluster.node_key_file) or str(place.node_key),
        name_key_file=absolute(config.cluster.names_file) or str(place.name_key),
        server_key_file=str(place.server_key(own.files)) if of.door else None,
        reset_secret_file=str(place.reset_secret) if of.door or of.listens else None,
        token_file=token_file(config, place) if "token" in of.secrets else None,
        recv_buffer=sockets.recv_buffer_bytes if sockets else 0,
        send_buffer=sockets.send_buffer_bytes if sockets else 0,
        payload_bytes=sockets.payload_bytes if sockets else 0,
        faults=faults,
        seed=config.faults.seed + own.node if config.faults.seed else secrets.randbits(63),
        drain_ms=drain_ms(section),
        **live(config, place, own.role, own.partition, programs),
        log_format=config.log.format,
    )


def drain_ms(options: Section) -> int:
    """Limit of a drain: the options' `drain_s`, if they have the key, and time for the last answers."""
    own_s: float = getattr(options, "drain_s", 0.0)
    return DRAIN_MS + int(own_s * 1_000)


def live(
    config: Config, place: Folder, role: str, partition: int = 0, programs: Programs = MappingProxyType({})
) -> dict[str, Any]:
    """The fields of a spec that a running node can change."""
    of, cluster = kind(role), config.cluster
    around = Around(config.section, config.instance.name, place.path, partition, absolute, programs, config.runs)
    return {
        "key_id": cluster.key_id,
        "cluster_secret_file": absolute(cluster.secret_file) or str(place.cluster_secret),
        "other_key_id": cluster.other_key_id,
        "other_secret_file": absolute(cluster.other_secret_file),
        "identity": cluster.identity,
        "nodes_file": absolute(cluster.nodes_file),
        "jwt_secret_file": jwt_secret_file(config, place) if "users" in of.secrets else "",
        "jwks": jwks(config) if "users" in of.secrets else "",
        "revoked_file": absolute(cluster.revoked_file) if "users" in of.secrets else "",
        "weight": config.serve.weight if of.door else None,
        "linger_us": config.loop.linger_us if of.linked else 0,
        "log_level": config.log.level,
        "settings": of.settle(config.role(role), around),
    }


def registration(
    config: Config,
    place: Folder,
    own: Own,
    name: str,
    client: tuple[str, int] | None,
    public_key: str,
    certificate_file: str = "",
) -> Registration:
    """A node's registration: its name, its address for clients, and the key by which they check it. Without a
    `certificate_file` a server certifies itself. Raises `ConfigError`."""
    registry, of = config.registry, kind(own.role)
    signing = ""
    if of.certified and not certificate_file:
        certifying_key(config, place)
        signing = signing_key_file(config, place)
    return Registration(
        url=registry.url,
        folder=_registry_folder(place, registry.url),
        name=name,
        partition=own.partition,
        cluster=own.cluster,
        client=client,
        public_key=public_key,
        secure=of.secure(config.section),
        session_ms=registry.session_ms,
        auth=registry.auth,
        user=registry.user,
        password_file=absolute(registry.password_file),
        tls_ca_file=absolute(registry.tls_ca_file),
        tls_cert_file=absolute(registry.tls_cert_file),
        tls_key_file=absolute(registry.tls_key_file),
        signing_key_file=signing,
        certificate_file=certificate_file if of.certified else "",
        signing_keys=signing_keys(config, place) if of.shows else [],
        cut_off_ms=registry.cut_off_ms,
    )


def reader(config: Config, url: str) -> Registration:
    """The settings of a read-only registry client. It checks the certificates of servers if it knows the keys."""
    registry, place = config.registry, folder(config)
    return Registration(
        url=url,
        folder=_registry_folder(place, url),
        name="",
        partition=0,
        client=None,
        public_key="",
        session_ms=registry.session_ms,
        auth=registry.auth,
        user=registry.user,
        password_file=absolute(registry.password_file),
        tls_ca_file=absolute(registry.tls_ca_file),
        tls_cert_file=absolute(registry.tls_cert_file),
        tls_key_file=absolute(registry.tls_key_file),
        signing_keys=signing_keys(config, place if url == "embedded" else None),
    )


def _registry_folder(place: Folder, url: str) -> str:
    if url == "embedded":  # a server of the embedded registry belongs to this user, so its entries are trusted
        check(place)
    return str(place.path)


def secret_files(config: Config) -> list[str]:
    """The files with secrets that the configuration names. Raises `ConfigError`."""
    cluster = config.cluster
    named = (
        cluster.secret_file,
        cluster.other_secret_file,
        cluster.names_file,
        cluster.jwt_secret_file,
        cluster.signing_key_file,
        cluster.node_key_file,
        *(
            getattr(section, name)
            for section in config.sections()
            for name in getattr(section, "__struct_fields__", ())
            if name.endswith(SECRETS)
        ),
    )
    return [absolute(file) for file in named if file]


def wrong_secret_files(config: Config) -> Iterator[str]:
    """A line for each secret file of the cluster that this user can read but no node can start with."""
    cluster = config.cluster
    checks: dict[str, tuple[str, Callable[[str], object]]] = {
        "secret_file": (cluster.secret_file, lambda file: secret(file, 32)),
        "other_secret_file": (cluster.other_secret_file, lambda file: secret(file, 32)),
        "names_file": (cluster.names_file, lambda file: secret(file, 16)),
        "token_file": (cluster.token_file, shared_token),
        "jwt_secret_file": (cluster.jwt_secret_file, signing_secrets),
        "signing_key_file": (cluster.signing_key_file, lambda file: secret(file, 32)),
        "node_key_file": (cluster.node_key_file, lambda file: secret(file, 32)),
        "revoked_file": (cluster.revoked_file, lambda file: revoked(file, FORM)),
    }
    for key, (named, read) in checks.items():
        file = absolute(named)
        if file and os.access(file, os.R_OK):
            try:
                read(file)
            except SpecError as error:
                yield f"cluster.{key}: {error}"


def warn_of_secrets(config: Config, log: structlog.typing.FilteringBoundLogger) -> None:
    """Log a warning for files with secrets that other users can read."""
    for file in files.open_to_all(secret_files(config)):
        log.warning("all users of this machine can read or change a secret", file=file, mend=f"chmod o= {file}")


def admin_access(config: Config) -> AdminAccess:
    """The access to admin ports."""
    admin = config.admin
    return AdminAccess(
        token_file=absolute(admin.token_file),
        cert_file=absolute(admin.tls_cert_file),
        key_file=absolute(admin.tls_key_file),
    )


def names_file(config: Config) -> str:
    """The file of the key of room names, if this configuration names it."""
    return absolute(config.cluster.names_file) or str(folder(config).name_key)


def token_file(config: Config, place: Folder) -> str:
    """The file of clients' credential."""
    return absolute(config.cluster.token_file) or str(place.token)


def signing_key_file(config: Config, place: Folder) -> str:
    """The file of the key that certifies servers."""
    return absolute(config.cluster.signing_key_file) or str(place.signing_key)


def signing_keys(config: Config, place: Folder | None) -> list[str]:
    """The public keys that certify servers, in hex.

    The configured ones, else the public half of the private key if this process can read it, in `place` if no file is
    named. Raises `ConfigError`."""
    said = config.cluster.signing_keys.strip()
    if said:
        return said.split(",")
    file = absolute(config.cluster.signing_key_file) or (str(place.signing_key) if place else "")
    return [_public_half(file)] if file and os.access(file, os.R_OK) else []


def certifying_key(config: Config, place: Folder) -> bytes:
    """The key that certifies servers. Raises `ConfigError`, also if `cluster.signing_keys` lacks its public half."""
    file = signing_key_file(config, place)
    if (public := _public_half(file)) not in signing_keys(config, place):
        raise ConfigError(f"cluster.signing_keys: lacks {public}, the public half of {file}; add it")
    return secret(file, 32)


def _public_half(file: str) -> str:
    from muster_server.plane.certificate import public_half  # loads a library

    try:
        return public_half(secret(file, 32))
    except SpecError as error:
        raise ConfigError(str(error)) from None


def jwt_secret_file(config: Config, place: Folder) -> str:
    """The file of the secrets of users' tokens; empty if there is none."""
    made = str(place.jwt_secret) if place.jwt_secret.exists() else ""
    return absolute(config.cluster.jwt_secret_file) or made


def signing_secret(config: Config) -> bytes:
    """The secret that signs users' tokens: the first in its file. Raises `ConfigError`."""
    place = folder(config)
    if not config.cluster.jwt_secret_file:
        check(place)
    file = jwt_secret_file(config, place)
    if not file:
        raise ConfigError(f"cluster.jwt_secret_file: not set, and {place.jwt_secret} is missing; muster up makes it")
    try:
        return signing_secrets(file)[0]
    except SpecError as error:
        raise ConfigError(str(error)) from None


def jwks(config: Config) -> str:
    """The key set of users' tokens: a URL as configured, or the absolute path of a file; empty if there is none."""
    said = config.cluster.jwks
    return said if said.startswith(URLS) else absolute(said)


def absolute(file: str) -> str:
    """Make a path absolute. Empty stays empty. Raises `ConfigError`."""
    return file and str(files.absolute(file))
