"""Checks of the section of the fleet beyond one key's type."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from muster_server.control.config.options import Config
from muster_server.control.host.addresses import NO_ADDRESS, split_address
from muster_server.plane.spec import SpecError
from muster_server.systems.fleet.options import NONE, Fleet, redis_url, url
from muster_server.systems.fleet.system import INDEX, SCHEDULER

NAME_OF_A_HOST: Final = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Wrong keys, and their mistakes."""
    fleet: Fleet = config.section("fleet")
    if fleet.mqtt:
        try:
            user = url(fleet.mqtt).user
        except SpecError as error:
            yield ("fleet", "mqtt"), str(error).partition(": ")[2]
        else:
            if not user:
                yield ("fleet", "mqtt"), "missing user (expected mqtt://USER@HOST:PORT)"
    if fleet.redis not in {"", NONE}:
        try:
            redis_url(fleet.redis)
        except SpecError as error:
            yield ("fleet", "redis"), str(error).partition(": ")[2]
    try:
        split_address(fleet.bind)
    except ValueError:
        yield ("fleet", "bind"), f"{fleet.bind!r} {NO_ADDRESS}"
    if fleet.tls_bind:
        try:
            _, port = split_address(fleet.tls_bind)
        except ValueError:
            yield ("fleet", "tls_bind"), f"{fleet.tls_bind!r} {NO_ADDRESS}"
        else:
            if not port:
                yield ("fleet", "tls_bind"), "a port of 0 is not possible here; choose one, as 8883"
        if fleet.mqtt:
            yield ("fleet", "tls_bind"), "it is an address of the mosquitto of muster up, but fleet.mqtt names a broker"
    for name in fleet.tls_names:
        if not NAME_OF_A_HOST.fullmatch(name):
            yield ("fleet", "tls_names"), f"invalid name of a host {name!r:.80}"
    if fleet.hint_ms > fleet.lease_ms:
        yield ("fleet", "hint_ms"), f"{fleet.hint_ms} ms exceed the lease of {fleet.lease_ms} ms"
    if 2 * fleet.beat_ms > fleet.lease_ms:
        yield (
            ("fleet", "lease_ms"),
            f"a lease of {fleet.lease_ms} ms is shorter than two heartbeats of {fleet.beat_ms} ms",
        )
    if fleet.results_topic and config.runs("fleet") and not config.runs("messages"):
        yield ("fleet", "results_topic"), "results go to a topic of delayed messages; run the system messages too"
    if fleet.receipt_ms > fleet.result_ms:
        yield ("fleet", "receipt_ms"), f"{fleet.receipt_ms} ms exceed the {fleet.result_ms} ms of the result"
    served = bool({INDEX.name, SCHEDULER.name} & set(roles)) and len(roles) == 1
    # a command other than `up` has no preset for this key
    chosen = config.runs("fleet") and stands(("registry", "url"))
    if not config.registry.url and (chosen or served):
        yield ("registry", "url"), "missing; nodes of the fleet find each other in a registry: embedded, or zk://…"
