"""Makes the roles of rooms: thin shells around the engines of `muster_server._engines`, which handle every packet.

Separate from the descriptors, which every command reads: only a node needs the imports of this file.
"""

from functools import partial
from typing import Any, Final

from muster_server import _engines
from muster_server.plane import ways
from muster_server.plane.auth import answering, embedded, taking
from muster_server.plane.engine import Placement
from muster_server.plane.keys import cluster_keys
from muster_server.plane.role import Role, Servers
from muster_server.plane.spec import Spec, SpecError, secret
from muster_server.plane.users import Texts
from muster_server.systems.rooms.broker import BrokerSettings
from muster_server.systems.rooms.engine import GatewayEngine, ProxyEngine, RoomsDoor, RoomsEngine
from muster_server.systems.rooms.gateway import GATEWAY, GatewaySettings, PresenceSettings
from muster_server.systems.rooms.options import DoorSettings
from muster_server.systems.rooms.proxy import PROXY, ProxySettings
from muster_server.systems.rooms.router import RouterSettings

ONE: Final = (1, 0)
"""The default for a layer without an entry in the spec."""


def gateway(spec: Spec, settings: GatewaySettings) -> Role:
    """Make a gateway, which binds its sockets. Raises `SpecError`, and `OSError` if an address is in use."""
    engine = _engines.GatewayEngine(
        **link_options(spec),
        **client_options(spec, settings),
        paced_namespaces=settings.paced_namespaces,
        namespaces=settings.namespaces,
        arena_bytes=settings.arena_bytes,
        history_max=settings.history_max,
        membership_again_ms=settings.membership_again_ms,
        presence=station(settings.presence),
    )
    authenticator, texts = embedded(spec, GATEWAY.door, settings.default_rights), Texts()
    return Role(
        engine,
        {"authenticate": answering(engine, authenticator, texts)},
        partial(taking, engine, authenticator),
        partial(placing, engine),
        partial(take_gateway, engine),
        partial(naming, engine),
        texts,
    )


def station(told: PresenceSettings | None) -> tuple[int, str, list[tuple[int, int, str]]] | None:
    """The settings of presence in a gateway or an edge; None if presence is off."""
    return None if told is None else (told.window_ms * 1_000, told.devices, told.users)


def take_gateway(engine: GatewayEngine, settings: GatewaySettings) -> None:
    """Use the settings that a running gateway can change."""
    take_door(engine, settings)
    engine.history_max(settings.history_max)
    engine.bounds(sessions=settings.user_sessions_max, places=settings.user_rooms_max, rooms=settings.rooms_max)


def proxy(spec: Spec, settings: ProxySettings) -> Role:
    """Make a proxy, which binds its sockets. Raises `SpecError`, and `OSError` if an address is in use."""
    queue = _engines.Undelivered() if settings.not_online else None
    engine = _engines.ProxyEngine(
        **link_options(spec),
        **client_options(spec, settings),
        age_every=settings.age_every,
        namespaces=settings.namespaces,
        unicast=settings.sends is not None,
        undelivered=queue,
    )
    authenticator = embedded(spec, PROXY.door, settings.default_rights, settings.sends)
    texts = Texts()
    return Role(
        engine,
        {"authenticate": answering(engine, authenticator, texts)},
        partial(taking, engine, authenticator),
        partial(placing, engine),
        partial(take_proxy, engine),
        partial(naming, engine),
        texts,
        None if queue is None else ways.hands_on(spec, settings.folder, settings.not_online, queue),
    )


def take_proxy(engine: ProxyEngine, settings: ProxySettings) -> None:
    """Use the settings that a running proxy can change."""
    take_door(engine, settings)
    engine.command_limit(settings.command_rate, settings.command_burst)
    engine.bounds(
        sessions=settings.user_sessions_max, messages=settings.user_message_rate, bytes=settings.user_byte_rate
    )


def broker(spec: Spec, settings: BrokerSettings) -> Role:
    """Make a broker, which binds its sockets. Raises `SpecError`, and `OSError` if an address is in use."""
    engine = _engines.BrokerEngine(
        **link_options(spec),
        name_key=name_key(spec),
        arena_bytes=settings.arena_bytes,
        namespaces=settings.namespaces,
    )
    return Role(engine, place=partial(placing, engine))


def router(spec: Spec, settings: RouterSettings) -> Role:
    """Make a router, which binds its sockets. Raises `SpecError`, and `OSError` if an address is in use."""
    engine = _engines.RouterEngine(**link_options(spec), memberships_max=settings.memberships_max)
    return Role(engine, place=partial(placing, engine))


def take_door(engine: RoomsDoor, settings: DoorSettings) -> None:
    """Use the settings that a running gateway or proxy can change."""
    engine.backoff(settings.backoff_ms, settings.backoff_max_ms)
    engine.session_limits(settings.sessions_max, settings.accept_rate)


def placing(engine: RoomsEngine, placement: Placement) -> None:
    """Pass the map to an engine of rooms: brokers and routers are its layers."""

    def both(layers: Any, at: int) -> tuple[int, int]:
        return layers.get("broker", ONE)[at], layers.get("router", ONE)[at]

    beside = [(nodes, *layers.get("broker", ONE)) for nodes, layers in placement.beside]
    layers = placement.layers
    engine.placement(placement.epoch, placement.nodes, both(layers, 0), both(layers, 1), beside)


def naming(engine: RoomsDoor, servers: Servers) -> None:
    """Name these gateways and proxies to clients from now on."""
    engine.servers(servers.get("gateway", []), servers.get("proxy", []))


def link_options(spec: Spec) -> dict[str, Any]:
    """The arguments of every engine. Raises `SpecError`."""
    keys = cluster_keys(spec)
    return {
        "node": spec.node,
        "epoch": spec.epoch,
        "link_bind": spec.link_bind,
        "cluster_key": keys.current,
        "cluster_other": keys.other,
        "cluster_allow": keys.allow,
        "seed": spec.seed,
        "recv_buffer": spec.recv_buffer,
        "send_buffer": spec.send_buffer,
        "payload_bytes": spec.payload_bytes,
        "faults": spec.faults,
    }


def client_options(spec: Spec, settings: DoorSettings) -> dict[str, Any]:
    """Further arguments of engines that clients connect to. Raises `SpecError`."""
    if spec.bind is None:
        raise SpecError(f"a {spec.role} needs bind")
    return {
        "bind": spec.bind,
        "name_key": name_key(spec),
        "keepalive_ms": settings.keepalive_ms,
        "idle_timeout_ms": settings.idle_timeout_ms,
        "server_key": secret(spec.server_key_file, 32),
        "reset_secret": secret(spec.reset_secret_file, 32),
    }


def name_key(spec: Spec) -> bytes:
    """The key of the hash that maps room names to ids. Raises `SpecError`."""
    return secret(spec.name_key_file, 16)
