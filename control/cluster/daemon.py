"""One node on a production host, or machines that share a process: in the foreground, under systemd, Kubernetes or
alone.

Owns the nodes' specs and folders, the signals, and the reports to systemd. `control/node/process.py` runs a role. This
file restarts nothing.
"""

import asyncio
import contextlib
import faulthandler
import ipaddress
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from muster_server import _engines
from muster_server.control.cluster import instance, specs
from muster_server.control.cluster.instance import Folder
from muster_server.control.config.load import Loaded
from muster_server.control.config.options import Config
from muster_server.control.errors import FAILURE, ConfigError, UserError
from muster_server.control.host import hangup
from muster_server.control.host.addresses import split_address
from muster_server.control.host.notify import Notify
from muster_server.control.host.ports import Ports
from muster_server.control.node import logs, memory
from muster_server.control.node import process as node
from muster_server.control.node.life import Life
from muster_server.control.node.live import Again, Live, Now, needing_restart
from muster_server.control.registry.places import MAIN, NAME, Count, Snapshot, layer
from muster_server.plane.keys import ClusterKeys, cluster_keys
from muster_server.plane.kinds import command_keys, kind, kinds, partitioned
from muster_server.plane.server import Others
from muster_server.plane.spec import Registration, Spec, SpecError, secret
from muster_server.plane.trust import shared_token, trust_of

END_S: Final = 15.0
"""Seconds after which a draining node is killed, beyond the drain that its configuration asks for if that is longer than
`DRAIN_S`."""
DRAIN_S: Final = 11.0
"""Seconds of a drain that fit into `END_S`: the defaults of all roles."""
Work = Callable[[node.Owner], Coroutine[Any, Any, None]]
"""The running role, which reports its state to its owner."""
OTHERS: Final = ("up.", "admin.host", "links.", "systems.")
"""Prefixes of keys that have no meaning for a single node, besides those that only a system's commands read."""


def node_name(config: Config, role: str, shares: bool = False) -> str:
    """The name that owns the node's number. `shares`: other nodes of the process have the same configuration. Raises
    `ConfigError`."""
    if config.serve.name:
        return f"{config.serve.name}-{role}" if shares else config.serve.name
    name = f"{socket.gethostname()}-{role}"
    if not re.fullmatch(NAME, name):
        raise ConfigError(
            f"serve.name: {name!r}, made from this host's name, is not valid in the registry; choose another name"
        )
    return name


def folder(config: Config, name: str) -> Folder:
    """The node's own folder."""
    return Folder(Path(specs.absolute(config.serve.dir)) / name)


@contextlib.contextmanager
def prepared(config: Config, role: str, index: int = 0, shares: bool = False) -> Iterator[tuple[Spec, Ports]]:
    """Make the node's spec, and hold its folder and its ports; the ports until they are released.

    `index`: the node's index in a process that it `shares` with others. Raises `UserError`."""
    _check(config, role)
    place = folder(config, node_name(config, role, shares))
    proves = kind(role).linked and config.cluster.identity != "off" and not config.cluster.node_key_file
    instance.prepare_node(place, [role] if kind(role).door else [], proves, listens=kind(role).listens)
    with instance.lock(place, _taken), Ports() as ports:
        yield spec(config, role, place, ports, index), ports


def spec(config: Config, role: str, place: Folder, ports: Ports, index: int = 0) -> Spec:
    """Make the node's spec. Raises `UserError`."""
    section, of = config.role(role), kind(role)
    bind = link_bind = None
    if of.door or of.listens:
        client = ports.tcp if of.listens else ports.udp
        bind = client(f"{of.key}.bind", *split_address(section.bind))
        link_bind = ports.udp(f"{of.key}.link_bind", *split_address(section.link_bind))
    elif of.linked:
        link_bind = ports.udp(f"{of.key}.bind", *split_address(section.bind))
    elif of.process == "face":
        bind = ports.tcp(f"{of.key}.bind", *split_address(section.bind))
    admin_host, admin_port = split_address(config.serve.admin)
    own = specs.Own(
        role=role,
        files=role,
        node=0,
        epoch=1,
        partition=config.serve.partition if of.partitioned else 0,
        cluster=config.serve.cluster if of.clustered else MAIN,
        bind=bind,
        link_bind=link_bind,
        admin=ports.tcp("serve.admin", admin_host, admin_port and admin_port + index),
    )
    first = {layer(each): Count(config.serve.partitions(each)) for each in partitioned()}
    made = specs.spec(config, place, own, Snapshot(counts=first), _registration(config, place, own))
    keys = _check_secrets(made)
    return made if keys is None or keys.allow is None else msgspec.structs.replace(made, node=keys.allow.number())


def _check(config: Config, role: str) -> None:
    """Check what `muster serve` needs beyond `muster up`. Raises `ConfigError`."""
    of = kind(role)
    if not config.registry.url:
        raise ConfigError(
            "registry.url: missing; nodes of muster serve find each other through it: zk://HOST:PORT/PATH"
        )
    if lacks := of.check(config.section):
        raise ConfigError(lacks)
    for key, secret_name in (("secret_file", "cluster"), ("names_file", "names"), ("token_file", "token")):
        if secret_name in of.secrets and not getattr(config.cluster, key):
            raise ConfigError(f"cluster.{key}: missing; muster serve needs it, with the same content on each host")
    cluster = config.cluster
    if of.certified and not (cluster.signing_key_file or config.serve.certificate_file):
        raise ConfigError(
            f"serve.certificate_file: missing; a {role} needs its certificate, or cluster.signing_key_file to make it"
        )
    if of.shows and not (cluster.signing_keys or cluster.signing_key_file):
        raise ConfigError(
            f"cluster.signing_keys: missing; a {role} presents credentials only to servers that these keys certify"
        )
    admin, (host, _) = config.admin, split_address(config.serve.admin)
    if not ipaddress.ip_address(host).is_loopback and not (admin.token_file and admin.tls_cert_file):
        raise ConfigError(
            f"serve.admin: other hosts can reach {host}; set admin.token_file, admin.tls_cert_file and "
            "admin.tls_key_file"
        )
    if config.faults.active():
        raise ConfigError("faults: only muster up injects them; remove them")


def _check_secrets(made: Spec) -> ClusterKeys | None:
    of = kind(made.role)
    try:
        keys = cluster_keys(made) if of.linked else None
        if "names" in of.secrets:
            secret(made.name_key_file, 16)
        if made.token_file is not None:
            shared_token(made.token_file)
        trust_of(made)
        return keys
    except SpecError as error:
        raise ConfigError(str(error)) from None


def _registration(config: Config, place: Folder, own: specs.Own) -> Registration:
    client, public_key = own.bind, ""
    if client is not None:
        if ipaddress.ip_address(client[0]).is_unspecified:
            if own.link_bind is None:
                raise ConfigError(f"{own.role}.bind: the registry passes it on to others; name one address")
            if client[0] == "0.0.0.0" and ":" in own.link_bind[0]:
                raise ConfigError(
                    f"{own.role}.bind: 0.0.0.0 is not an IPv6 address, unlike {own.role}.link_bind; write [::]"
                )
            client = own.link_bind[0], client[1]
        if kind(own.role).door:
            public_key = bytes(_engines.public_key(secret(str(place.server_key(own.files)), 32))).hex()
    of = instance.folder(config)  # the folder of the embedded registry, if that is used
    certificate = specs.absolute(config.serve.certificate_file)
    made = specs.registration(config, of, own, place.path.name, client, public_key, certificate)
    return msgspec.structs.replace(made, grown=True, number_file=str(place.number))


def run(loaded: Loaded, roles: Sequence[str], read: Callable[[], Loaded]) -> int:
    """Run a node of each role until SIGTERM or SIGINT. `read` reads the configuration again. Raises `UserError`."""
    config, shares = loaded.config, len(roles) > 1
    if shares:
        _check_shared(config, roles)
    with contextlib.ExitStack() as held:
        nodes = [held.enter_context(prepared(config, role, index, shares)) for index, role in enumerate(roles)]
        log = _begin(config)
        with _said():
            others = _together() if shares else None
            hosted = [_hosted(config, made, ports, log, read, others) for made, ports in nodes]
            memory.run(Daemon(hosted).run())
    return 0


def _check_shared(config: Config, roles: Sequence[str]) -> None:
    """Check what nodes that share a process need beyond a node of its own. Raises `ConfigError`."""
    certified = [role for role in roles if kind(role).certified]
    if config.serve.certificate_file and len(certified) > 1:
        raise ConfigError(
            f"serve.certificate_file: certifies one server only; for {' and '.join(certified)} in one process set "
            "cluster.signing_key_file instead"
        )
    if config.cluster.identity != "off" and config.cluster.node_key_file:
        raise ConfigError(
            "cluster.node_key_file: a key belongs to one node; leave it out, and each node of the process "
            "makes one in its folder"
        )


def _together() -> Others:
    from muster_server.plane.together import Together

    return Together()


def _hosted(
    config: Config,
    made: Spec,
    ports: Ports,
    log: structlog.typing.FilteringBoundLogger,
    read: Callable[[], Loaded],
    others: Others | None,
) -> "Hosted":
    """A node of this process. Raises `SpecError`."""
    assert made.registry is not None
    log = log.bind(role=made.role, name=made.registry.name)
    if made.registry.client is not None:
        log.info("serving clients", address=made.registry.client, public_key=made.registry.public_key)
    companion = node.companion_of(made)
    live = Live(log, config.log.level, made)
    again = reread(config, made.role, read, made)
    drain_s = made.drain_ms / 1_000
    return Hosted(live, again, lambda owner: node.serve_enrolled(made, log, owner, companion, ports, others), drain_s)


def _begin(config: Config) -> structlog.typing.FilteringBoundLogger:
    faulthandler.enable()  # systemd's watchdog sends SIGABRT: print the stack
    log = logs.configure(config.log.level, config.log.format, instance=config.instance.name)
    specs.warn_of_secrets(config, log)
    return log


@contextlib.contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except SpecError as error:
        raise UserError(str(error), FAILURE) from None


def _taken(place: Folder) -> UserError:
    return UserError(f"{place.path.name} runs already: another process holds {place.path}; see serve.name")


class Hosted:
    """One node of the process; as its owner, it decides the node's end."""

    def __init__(self, live: Live, again: Again, work: Work, drain_s: float = 0.0) -> None:
        self.live, self.state, self.drain_s = live, "starting", drain_s
        self.error = ""
        """The reason why the node waits."""
        self.told: Callable[[Hosted], None] = lambda hosted: None
        """Called with each report of its state."""
        self._again, self._work = again, work
        self._life = Life()

    async def run(self) -> None:
        """Run until it has drained. Raises `SpecError`, and `OSError` if an address is in use."""
        await self._life.run(self._work(self))

    def tell(self, state: str, **more: Any) -> None:
        """Store the reported state."""
        self.state, self.error = state, more.get("error", "")
        self.told(self)

    def watch(self, end: asyncio.Event, stop: asyncio.Event, attach: Callable[[Live], None]) -> None:
        """An earlier order to end counts too."""
        attach(self.live)
        self._life.watch(end, stop)

    def current(self, spec: Spec) -> Spec:
        """The spec with the changes of each SIGHUP since."""
        return self.live.current(spec)

    def end(self) -> None:
        """End in order: drain first."""
        self._life.end()

    def reload(self) -> None:
        """Read the configuration again."""
        self.live.reload(self._again)


class Daemon:
    """Runs the nodes of a process without a parent process: it handles the signals, and reports to systemd."""

    def __init__(self, nodes: Sequence[Hosted], notify: Notify | None = None) -> None:
        self._nodes = nodes
        self._notify = notify or Notify()
        self._ending = self._ready = False

    async def run(self) -> None:
        """Serve until a signal, or until a node ends by itself: then all drain. Raises the error that ended the first
        one: `SpecError`, or `OSError` if an address is in use."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        if hangup.came():
            self._reload()
        self._notify.status("starting")
        beating = asyncio.create_task(self._notify.beat())
        ended: list[asyncio.Task[None]] = []
        running: list[asyncio.Task[None]] = []
        for hosted in self._nodes:
            hosted.told = self._told
            running.append(asyncio.create_task(hosted.run()))
            running[-1].add_done_callback(ended.append)
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            self._stop()
            await asyncio.wait(running)
        finally:
            beating.cancel()
            for task in running:
                task.cancel()
        first, *rest = ended
        for task in rest:
            if error := task.exception():
                self._nodes[running.index(task)].live.log.error("ended", error=str(error))
        first.result()

    def _told(self, hosted: Hosted) -> None:
        """Report to systemd."""
        if self._ending:
            return
        match hosted.state:
            case "ready":
                if all(each.state == "ready" for each in self._nodes):
                    self._ready = True
                    self._notify.status("serving", "READY=1")
            case "not_ready":
                self._notify.status("not ready: see the log")
            case "waiting":
                self._notify.status(f"waits for {hosted.error}")
            case state:
                self._notify.status(state)

    def _stop(self) -> None:
        if self._ending:
            return
        self._ending = True
        longest = max(hosted.drain_s for hosted in self._nodes)
        asyncio.get_running_loop().call_later(END_S + max(0.0, longest - DRAIN_S), self._give_up)
        self._notify.status("draining", "STOPPING=1")
        for hosted in self._nodes:
            hosted.end()

    def _give_up(self) -> None:
        self._nodes[0].live.log.error("did not end in time")
        os._exit(FAILURE)

    def _reload(self) -> None:
        """Read the configuration again. A node that is not ready yet reports the result later."""
        if self._ready:
            self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        for hosted in self._nodes:
            hosted.reload()
        if self._ready:
            self._notify("READY=1")


def reread(began: Config, role: str, read: Callable[[], Loaded], made: Spec) -> Again:
    """Compute the new values for a node that started with this spec."""

    assert made.registry is not None
    place, partition = folder(began, made.registry.name), made.registry.partition

    def again() -> Now:
        config = read().config
        _check(config, role)
        told = msgspec.structs.replace(made, **specs.live(config, place, role, partition))
        return Now(config.log.level, told, needing_restart(began, config, _others(role)))

    return again


def _others(role: str) -> tuple[str, ...]:
    """Prefixes of keys that do not concern such a node."""
    return (*OTHERS, *command_keys(), *(f"{other.key}." for other in kinds().values() if other.name != role))
