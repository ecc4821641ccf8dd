"""Checks of the sections of delayed messages beyond one key's type."""

import ipaddress
from collections.abc import Callable, Iterator, Sequence

from muster_server.control.config.options import Config
from muster_server.systems.messages.redis_url import mistake
from muster_server.systems.messages.system import lacks, networks

Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Wrong keys, with their mistakes."""
    if config.runs("messages") and (text := lacks(config.section)):
        yield ("systems", "enabled"), text
    center = config.section("center")
    if center.schedule and (text := mistake(center.schedule)):
        yield ("center", "schedule"), text
    if center.schedule_password_file and not center.schedule:
        yield ("center", "schedule_password_file"), "a password needs its Redis: set center.schedule"
    callbacks = config.section("callbacks")
    if bool(callbacks.tls_cert_file) != bool(callbacks.tls_key_file):
        yield (
            ("callbacks", "tls_key_file"),
            "a certificate and its key need each other; set tls_cert_file and tls_key_file, or neither",
        )
    for network in networks(config.section("callbacks").allowed):
        try:
            ipaddress.ip_network(network)
        except ValueError:
            yield ("callbacks", "allowed"), f"invalid network {network!r} (expected CIDR, for example 10.1.0.0/16)"
