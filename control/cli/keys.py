"""`muster cluster node-key` and `signing-key`: key pairs, with the private half in a file and the public half in a
line; `certify` and `probe-token`: values derived from a secret, for a host that does not have it."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from muster_server.control.cluster import instance
from muster_server.control.cluster.specs import certifying_key, token_file
from muster_server.control.config import load as config
from muster_server.control.errors import USAGE, ConfigError, UserError
from muster_server.control.host.addresses import NO_ADDRESS, split_address
from muster_server.control.registry.places import Certificate
from muster_server.plane.certificate import Claim, issue, public_half
from muster_server.plane.keys import KEY_BYTES, public_key
from muster_server.plane.kinds import kind
from muster_server.plane.spec import SpecError, secret
from muster_server.plane.trust import probe_token as probe_token_of
from muster_server.plane.trust import shared_token


def node_key(file: Path) -> int:
    """Print the public half of the key that proves a node's identity on links."""
    return _printed(file, public_key)


def signing_key(file: Path) -> int:
    """Print the public half of the key that certifies servers."""
    return _printed(file, lambda name: public_half(secret(name, KEY_BYTES)))


def probe_token(config_file: Path | None) -> int:
    """Print the prober's own token. Raises `UserError`."""
    settings = config.load(config_file).config
    try:
        print(probe_token_of(shared_token(token_file(settings, instance.folder(settings)))).decode())
    except SpecError as error:
        raise ConfigError(str(error)) from None
    return 0


def certify(config_file: Path | None, role: str, node: int, address: str, key: str, cluster: str, hours: int) -> int:
    """Print a server's certificate for this many hours, in JSON. Raises `UserError`."""
    if not kind(role).certified:
        raise UserError(f"ROLE: a {role} needs no certificate, since clients present no credential to it", USAGE)
    if bool(key) != bool(kind(role).door):
        raise UserError(f"KEY: a {role} {'needs its public key' if kind(role).door else 'has no key'}", USAGE)
    try:
        host, port = split_address(address)
    except ValueError:
        raise UserError(f"ADDRESS: {address!r} {NO_ADDRESS}", USAGE) from None
    claim = Claim(node, role, cluster, host, port, key)
    settings = config.load(config_file).config
    private = certifying_key(settings, instance.folder(settings))
    print(msgspec.json.encode(Certificate(*issue(private, claim, time.time(), hours * 3_600))).decode())
    return 0


def _printed(file: Path, public: Callable[[str], str]) -> int:
    """Make the private half if it is missing, and print the public half."""
    try:
        instance.make_key(file)
        print(public(str(file)))
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
    except SpecError as error:
        raise ConfigError(str(error)) from None
    return 0
