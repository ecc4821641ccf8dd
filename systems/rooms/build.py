"""Makes the roles of rooms: thin shells around the engines of `muster_server._engines`, which handle every packet.

Separate from the descriptors, which every command reads: only a node needs the imports of this file.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from muster_server import _engines
from muster_server.plane import ways
from muster_server.plane.auth import answering, embedded, taking
from muster_server.plane.engine import Placement
from muster_server.plane.keys import link_options
from muster_server.plane.role import Role, Servers
from muster_server.plane.spec import Spec, SpecError, secret
from muster_server.plane.users import Texts
from muster_server.systems.rooms.broker import BrokerSettings
from muster_server.systems.rooms.engine import RoomsDoor, RoomsEngine
from muster_server.systems.rooms.gateway import GATEWAY, GatewaySettings
from muster_server.systems.rooms.options import DoorSettings
from muster_server.systems.rooms.proxy import PROXY, ProxySettings
from muster_server.systems.rooms.router import RouterSettings

if TYPE_CHECKING:
    from muster_server._engines import DoorOptions

ONE: Final = (1, 0)
"""The default for a layer without an entry in the spec."""


def gateway(spec: Spec, settings: GatewaySettings) -> Role:
    """Make a gateway, which binds its sockets. Raises `SpecError`, and `OSError` if an address is in use."""
    engine = _engines.GatewayEngine(link_options(spec), udp_door(spec), settings_json(settings))
    authenticator, texts = embedded(spec, GATEWAY.door, settings.default_rights), Texts()
    return Role(
        engine,
        {"authenticate": answering(engine, authenticator, texts)},
        partial(taking, engine, authenticator),
        partial(placing, engine),
        partial(take, engine),
        partial(naming, engine),
        texts,
    )


def take(engine: RoomsDoor, settings: DoorSettings) -> None:
    """Use the settings that a running gateway or proxy can change."""
    engine.settings(settings_json(settings))


def proxy(spec: Spec, settings: ProxySettings) -> Role:
    """Make a proxy, which binds its sockets. Raises `SpecError`, and `OSError` if an address is in use."""
    queue = _engines.Undelivered() if settings.not_online else None
    engine = _engines.ProxyEngine(
        link_options(spec),
        udp_door(spec),
        settings_json(settings),
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
        partial(take, engine),
        partial(naming, engine),
        texts,
        None if queue is None else ways.hands_on(spec, settings.folder, settings.not_online, queue),
    )


def broker(spec: Spec, settings: BrokerSettings) -> Role:
    """Make a broker, which binds its sockets. Raises `SpecError`, and `OSError` if an address is in use."""
    engine = _engines.BrokerEngine(link_options(spec), name_key(spec), settings_json(settings))
    return Role(engine, place=partial(placing, engine))


def router(spec: Spec, settings: RouterSettings) -> Role:
    """Make a router, which binds its sockets. Raises `SpecError`, and `OSError` if an address is in use."""
    engine = _engines.RouterEngine(link_options(spec), settings_json(settings))
    return Role(engine, place=partial(placing, engine))


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


def door_options(spec: Spec) -> "DoorOptions":
    """The second argument of every engine that clients connect to. Raises `SpecError`."""
    if spec.bind is None:
        raise SpecError(f"a {spec.role} needs bind")
    return {
        "bind": spec.bind,
        "name_key": name_key(spec),
        "reset_secret": secret(spec.reset_secret_file, 32),
    }


def udp_door(spec: Spec) -> "DoorOptions":
    """The same for clients over UDP, who know the server's key. Raises `SpecError`."""
    return {**door_options(spec), "server_key": secret(spec.server_key_file, 32)}


def settings_json(settings: msgspec.Struct, **more: Any) -> bytes:
    """Settings as engines read them: the keys of the role's own table and of `[clients]`, and what others make of them."""
    fields = msgspec.to_builtins(settings)
    return msgspec.json.encode({**fields.pop("options", {}), **fields.pop("clients", {}), **fields, **more})


def name_key(spec: Spec) -> bytes:
    """The key of the hash that maps room names to ids. Raises `SpecError`."""
    return secret(spec.name_key_file, 16)
