"""Reads the configuration: defaults < `muster up` < TOML file < environment < flags, and the origin of each value.

Owns precedence, names and messages. The keys themselves are in `control/config/options.py`. The configuration is parsed
once; the result is frozen and checked, and the rest of the program trusts it.
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from muster_server.control.config import layout
from muster_server.control.config.options import LINKS, SERVED, Config, Registry, whole
from muster_server.control.errors import ConfigError
from muster_server.control.host.addresses import NO_ADDRESS, PORT_MAX, split_address
from muster_server.control.host.files import foreign
from muster_server.plane import systems
from muster_server.plane.kind import RoleKind, named
from muster_server.plane.kinds import kind, partitioned
from muster_server.plane.options import DoorOptions

PREFIX: Final = "MUSTER_"
FILE_VARIABLE: Final = "MUSTER_CONFIG"
NOT_KEYS: Final = frozenset({FILE_VARIABLE, systems.MORE, "MUSTER_BENCH_LOOPBACK"})
"""Variables with the prefix that are not keys: Muster's own, and the one by which `muster bench` finds itself in its
namespace."""
DEFAULT: Final = "default"
NONE: Final = "none"
"""The value that turns off a URL key for which `muster up` has a preset."""
FILE_BYTES_MAX: Final = 1 << 20
"""Limit of the file in bytes: the path may name a device or an endless pipe."""

KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a layer, and its origin. `text`: the value is text and may be converted."""

    raw: Any
    origin: str
    text: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration and the origin of every value."""

    config: Config
    origins: Mapping[str, str]
    file: Path | None


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[Any, str]] | None = None,
    profile: Mapping[str, Any] | None = None,
    roles: Iterable[str] = SERVED,
) -> Loaded:
    """Read all layers.

    `flags` maps a dotted key to its value and the flag's name; `profile` holds the command's own presets
    (`control.config.options.UP`). `roles`: their addresses are checked, because these roles must reach each other.
    Raises `ConfigError` with one line: what is wrong, where, and how to mend it.
    """
    environment = os.environ if environment is None else environment
    layers: dict[KeyPath, Value] = {}
    for name, raw in (profile or {}).items():
        layers[tuple(name.split("."))] = Value(raw, "muster up")
    found = find_file(file, environment)
    if found is not None:
        layers.update(_from_file(found))
    layers.update(_from_environment(environment))
    for name, (raw, flag) in (flags or {}).items():
        layers[tuple(name.split("."))] = Value(raw, flag)
    config = _build(layers)
    _check(config, layers, roles)
    origins = {name: layers[path].origin if path in layers else DEFAULT for path, name in _leaves(config)}
    return Loaded(config, MappingProxyType(origins), found)


def find_file(file: Path | None, environment: Mapping[str, str]) -> Path | None:
    """Find the file to read: from the flag, from `$MUSTER_CONFIG`, `./muster.toml`, or the user's own. The last two are
    optional.
    Raises `ConfigError` for a `./muster.toml` that another user could have written.
    """
    if file is not None:
        return file
    if named := environment.get(FILE_VARIABLE):
        return Path(named)
    home = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config")
    here, own = Path("muster.toml"), home / "muster" / "muster.toml"
    if _is_file(here):
        if why := foreign(here):
            raise ConfigError(f"./{here}: {why}; to use it anyway: --config {here}")
        return here
    return own if _is_file(own) else None


def _is_file(path: Path) -> bool:
    """Whether the file exists. A file in a folder that this user may not enter counts as missing, for example if the
    current folder belongs to another user."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def values(config: Config) -> Iterator[tuple[str, Any]]:
    """Every key with its value, in the order of the documentation."""
    for path, name in _leaves(config):
        node: Any = config
        for part in path:
            node = node[part] if isinstance(node, Mapping) else getattr(node, part)
        yield name, node


def dotted(path: Iterable[str]) -> str:
    """A key in the form of TOML: parts that are not bare keys are quoted."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"' for part in path)


# --- layers ---------------------------------------------------------------------------------------------------------


def _from_file(file: Path) -> dict[KeyPath, Value]:
    try:
        with file.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise ConfigError(f"{file} is too long for a configuration (limit {FILE_BYTES_MAX >> 20} MiB)")
        tree = tomllib.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not UTF-8 text") from None
    # raised too for a number of thousands of digits, or very deeply nested tables
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from None
    return {path: Value(raw, str(file)) for path, raw in _flatten(tree, whole(), (), str(file))}


def _flatten(node: Any, kind: Any, path: KeyPath, where: str) -> Iterator[tuple[KeyPath, Any]]:
    if not isinstance(node, dict):
        raise ConfigError(f"{where}: {dotted(path)} is a table: write [{dotted(path)}]")
    for name, child in node.items():
        inner = _child(kind, (*path, name), where)
        if _is_table(inner):
            yield from _flatten(child, inner, (*path, name), where)
        else:
            yield (*path, name), child


def _from_environment(environment: Mapping[str, str]) -> dict[KeyPath, Value]:
    layer: dict[KeyPath, Value] = {}
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in NOT_KEYS:
            continue
        if any("\ud800" <= letter <= "\udfff" for letter in environment[name]):  # bytes that are not valid text
            raise ConfigError(f"{name}: {environment[name]!a} is not text in this locale")
        path = tuple(name[len(PREFIX) :].lower().split("__"))
        if len(path) == 1:
            close = _close(name, [_variable(key) for key, _ in _leaves(whole()())])
            raise ConfigError(f"{name}: unknown variable; keys are named MUSTER_SECTION__KEY{close}")
        kind: Any = whole()
        for end in range(1, len(path) + 1):
            if not _is_table(kind):
                raise ConfigError(f"{name}: {dotted(path[: end - 1])} has no keys below it")
            kind = _child(kind, path[:end], name)
        if _is_table(kind):
            raise ConfigError(f"{name}: {dotted(path)} is a table; name one of its keys: {_variable((*path, 'key'))}")
        layer[path] = Value(environment[name], name, text=True)
    return layer


def _variable(path: KeyPath) -> str:
    return PREFIX + "__".join(path).upper()


# --- the shape ------------------------------------------------------------------------------------------------------


def _is_table(kind: Any) -> bool:
    return _is_class(get_origin(kind), Mapping) or _is_struct(kind)


def _is_class(kind: Any, parent: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, parent)


def _is_struct(kind: Any) -> bool:
    return _is_class(kind, msgspec.Struct)


def _child(kind: Any, path: KeyPath, where: str) -> Any:
    """The type of a table's entry. Raises `ConfigError`, which suggests the nearest name."""
    if not _is_struct(kind):
        return get_args(kind)[1]
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    if path[-1] not in fields:
        match = difflib.get_close_matches(path[-1], fields, 1)
        close = f"; did you mean {dotted((*path[:-1], match[0]))}?" if match else ""
        raise ConfigError(f"{where}: unknown key {dotted(path)}{close or '; `muster config docs` lists them all'}")
    return fields[path[-1]]


def _choices(kind: Any) -> tuple[Any, ...]:
    """All allowed values of a key, if they are enumerated."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_args(plain) if get_origin(plain) is Literal else ()


def _close(name: str, names: Iterable[str]) -> str:
    match = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {match[0]}?" if match else ""


def _leaves(node: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(node, msgspec.Struct):
        children = [(field.name, getattr(node, field.name)) for field in msgspec.structs.fields(node)]
    elif isinstance(node, Mapping):
        children = list(node.items())
    else:
        yield path, dotted(path)
        return
    for name, child in children:
        yield from _leaves(child, (*path, name))


def _build(layers: Mapping[KeyPath, Value]) -> Config:
    tree: dict[str, Any] = {}
    for path, value in layers.items():
        kind: Any = whole()
        for end in range(1, len(path) + 1):
            kind = _child(kind, path[:end], value.origin)
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        try:
            node[path[-1]] = msgspec.convert(value.raw, kind, strict=not value.text)
        except msgspec.ValidationError as error:
            choices = ", ".join(repr(choice) for choice in _choices(kind))
            wrong = f"is not one of {choices}" if choices else str(error)
            raise ConfigError(f"{value.origin}: {dotted(path)} = {value.raw!r}: {wrong}") from None
        if isinstance(value.raw, str) and "\0" in value.raw:  # no path may contain a NUL
            raise ConfigError(f"{value.origin}: {dotted(path)} = {value.raw!r}: contains a NUL")
    config: Config = msgspec.convert(tree, whole())
    for section in config.sections():
        if getattr(section, "url", None) == NONE:
            msgspec.structs.force_setattr(section, "url", "")
    for name in config.__struct_fields__:
        if isinstance(tables := getattr(config, name), Mapping):
            msgspec.structs.force_setattr(config, name, MappingProxyType(dict(tables)))
    msgspec.structs.force_setattr(config.faults, "links", MappingProxyType(dict(config.faults.links)))
    return config


def _check(config: Config, layers: Mapping[KeyPath, Value], roles: Iterable[str]) -> None:
    """Checks beyond one key's type."""

    def fail(path: KeyPath, text: str) -> ConfigError:
        below = (value.origin for each, value in layers.items() if each[: len(path)] == path)
        return ConfigError(f"{next(below, DEFAULT)}: {dotted(path)}: {text}")

    for role in sorted(partitioned()):
        try:
            layout.grid(str(config.up.wanted(role)))
        except ValueError as error:
            raise fail(("up", kind(role).plural), str(error)) from None
        if (count := config.serve.partitions(role)).bit_count() != 1:
            raise fail(("serve", f"{role}_partitions"), f"{count} partitions are not a power of two")
    try:
        layout.groups(config.up.processes)
    except ValueError as error:
        raise fail(("up", "processes"), str(error)) from None
    for word in filter(None, map(str.strip, config.systems.enabled.split(","))):
        if word not in {*systems.named(), "all"}:
            raise fail(("systems", "enabled"), f"no system {word!r}{_close(word, systems.named())}")
    if wrong := _wrong_admin(config.serve.admin):
        raise fail(("serve", "admin"), wrong)
    if bool(config.admin.tls_cert_file) != bool(config.admin.tls_key_file):
        raise fail(("admin", "tls_key_file"), "admin.tls_cert_file and admin.tls_key_file need each other; set both")
    seats = layout.seats(config)
    if len(seats) > layout.NODES_MAX:
        raise fail(("up",), f"too many nodes: {len(seats)} (limit {layout.NODES_MAX} on one machine)")
    if fault := _fault_of(config.registry):
        raise fail(("registry", fault[0]), fault[1])
    _check_addresses(config, layers, [kind(role) for role in roles], seats, fail)
    for link in config.faults.links:
        if link not in LINKS:
            raise fail(("faults", "links", link), f"no such link{_close(link, LINKS) or f': one of {sorted(LINKS)}'}")
    for system in systems.named().values():
        if system.check:
            for path, text in named(system.check)(config, tuple(roles), lambda path: path in layers):
                raise fail(path, text)


def _check_addresses(
    config: Config,
    layers: Mapping[KeyPath, Value],
    roles: Sequence[RoleKind[Any, Any]],
    seats: Sequence[layout.Seat],
    fail: Callable[[KeyPath, str], ConfigError],
) -> None:
    links: dict[KeyPath, str] = {}
    for of in (of for of in roles if of.process != "worker"):
        section = config.options(of)
        names = of.binds
        hosts: dict[KeyPath, str] = {}
        for name in names:
            address: str = getattr(section, name)
            try:
                hosts[of.key, name], port = split_address(address)
            except ValueError:
                raise fail((of.key, name), f"{address!r} {NO_ADDRESS}") from None
            count = sum(seat.role == of.name for seat in seats)
            if port and port + count - 1 > PORT_MAX:
                raise fail((of.key, name), f"too many nodes: {count} from port {port} on exceed port {PORT_MAX}")
        if not of.linked:
            continue
        link = of.key, names[-1]
        if ipaddress.ip_address(hosts[link]).is_unspecified:
            raise fail(link, f"{address!r} stands for all addresses; name one address, since other roles send to it")
        # addresses of disabled systems are not compared
        if link in layers or any(seat.role == of.name for seat in seats):
            links[link] = hosts[link]
        if isinstance(section, DoorOptions) and section.idle_timeout_ms < 2 * section.keepalive_ms:
            name = "idle_timeout_ms" if (of.key, "idle_timeout_ms") in layers else "keepalive_ms"
            silence, keepalive = section.idle_timeout_ms, section.keepalive_ms
            raise fail(
                (of.key, name), f"the idle timeout of {silence} ms is shorter than two keepalives of {keepalive} ms"
            )
    # explicit values first, since their author can change them
    written = sorted(links, key=lambda path: path not in layers)
    for path in written[1:]:
        first = written[0]
        if (":" in links[path]) != (":" in links[first]):
            text = (
                f"{links[first]} and {dotted(path)} = {links[path]} cannot reach each other: links must be all IPv4 "
                "or all IPv6"
            )
            raise fail(first, text)


def _wrong_admin(address: str) -> str | None:
    """Return the mistake in the admin address, or None."""
    try:
        host, _ = split_address(address)
    except ValueError:
        return f"{address!r} {NO_ADDRESS}"
    every = ipaddress.ip_address(host).is_unspecified
    return f"{address!r} stands for all addresses; name one address, since the registry passes it on" if every else None


def _fault_of(registry: Registry) -> tuple[str, str] | None:
    """Return the wrong key and its mistake, or None."""
    if registry.url.startswith("zk://"):
        from muster_server.control.config.zookeeper import servers  # imports kazoo, only here

        try:
            servers(registry.url)
        except ValueError as error:
            return "url", str(error)
    elif registry.url not in {"", "embedded"}:
        return "url", f"invalid registry {registry.url!r} (expected embedded, zk://HOST:PORT,HOST:PORT/PATH or none)"
    if bool(registry.tls_cert_file) != bool(registry.tls_key_file):
        return "tls_key_file", "registry.tls_cert_file and registry.tls_key_file need each other; set both"
    if registry.tls_cert_file and not registry.tls_ca_file:
        return "tls_ca_file", "registry.tls_cert_file needs it, since a certificate is used only with TLS"
    if registry.auth == "none":
        return None
    if not registry.url.startswith("zk://"):
        return "auth", "applies only to ZooKeeper; set registry.url = zk://…"
    missing = next((name for name in ("user", "password_file") if not getattr(registry, name)), None)
    return (missing, f"registry.auth = {registry.auth!r} needs it") if missing else None
