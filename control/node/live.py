"""Values that change while a process runs: the level of its logs, the cluster's secrets, settings of engine or prober.

Owns the current values. Other files read the configuration again (`control/cluster/daemon.py`,
`control/node/process.py`, `control/cluster/supervisor.py`). How to replace a secret: docs/secure.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import structlog

from muster_server.control.config.load import values
from muster_server.control.config.options import Config
from muster_server.control.errors import UserError
from muster_server.control.node import logs
from muster_server.plane.engine import Engine
from muster_server.plane.keys import ClusterKeys, check_number, cluster_keys
from muster_server.plane.kinds import kind, kinds
from muster_server.plane.main import settings
from muster_server.plane.service import TakeTrust
from muster_server.plane.spec import Spec, SpecError
from muster_server.plane.trust import Trust, trust_of

LEVEL: Final = "log.level"
FIELDS: Final[Mapping[str, str]] = {
    "cluster.secret_file": "cluster_secret_file",
    "cluster.key_id": "key_id",
    "cluster.other_secret_file": "other_secret_file",
    "cluster.other_key_id": "other_key_id",
    "cluster.identity": "identity",
    "cluster.nodes_file": "nodes_file",
    "cluster.jwt_secret_file": "jwt_secret_file",
    "cluster.jwks": "jwks",
    "cluster.revoked_file": "revoked_file",
    "serve.weight": "weight",
    "loop.linger_us": "linger_us",
}
"""Configuration keys that every running node reloads, with the fields of a spec that hold them."""
RELOADED: Final = frozenset({LEVEL, *FIELDS, *(key for each in kinds().values() for key in each.reloads)})
"""Keys that SIGHUP reloads; all others need a restart."""


@dataclass(frozen=True, slots=True)
class Now:
    """The result of reading the configuration again."""

    level: str
    told: Spec | None = None
    """The new spec of this process."""
    needs_restart: Sequence[str] = ()
    """Changed keys that need a restart."""
    in_force: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The keys that other processes of this instance reload."""


Again = Callable[[], Now]
"""Reads the configuration again. Raises any error that prevents it."""

Weigh = Callable[[int], None]
Linger = Callable[[int], None]
TakeSettings = Callable[[Any], None]
"""The function of a role or a service that uses new settings."""


def merged(began: Config, now: Config) -> Config:
    """Return `began` with the values of `now` that are reloaded."""
    sections: dict[str, dict[str, Any]] = {}
    for key in RELOADED:
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = getattr(getattr(now, section), name)
    changed = {
        section: msgspec.structs.replace(getattr(began, section), **values) for section, values in sections.items()
    }
    return msgspec.structs.replace(began, **changed)


def reloading(before: Config, now: Config) -> dict[str, Any]:
    """Changed keys that are reloaded, with their new values."""
    was = dict(values(before))
    return {key: value for key, value in values(now) if key in RELOADED and was.get(key) != value}


def needing_restart(before: Config, now: Config, others: tuple[str, ...]) -> list[str]:
    """Changed keys that are not reloaded, except those with a prefix in `others`."""
    was, is_now = dict(values(before)), dict(values(now))
    changed = {key for key in was.keys() | is_now.keys() if was.get(key) != is_now.get(key)}
    return sorted(key for key in changed - RELOADED if not key.startswith(others))


class Live:
    """The current values in this process. `told`: its spec.

    `linked`: it has links already, so a new secret must follow the rules; for example the nodes of an instance have
    links with their supervisor's secret.
    """

    def __init__(
        self,
        log: structlog.typing.FilteringBoundLogger,
        level: str,
        told: Spec | None = None,
        *,
        linked: bool = False,
    ) -> None:
        """Raises `SpecError`."""
        self.log, self._level = log, level
        self._spec = None if told is None else _typed(told)
        self._keys = None if self._spec is None else _keys(self._spec)
        self._trust = None if self._spec is None else trust_of(self._spec)
        self._engine: Engine | None = None
        self._linked = linked
        self._weigh: Weigh | None = None
        self._take_trust: TakeTrust | None = None
        self._take_settings: TakeSettings | None = None
        self._linger: Linger | None = None

    def attach(
        self,
        engine: Engine | None,
        node: int,
        take_settings: TakeSettings,
        weigh: Weigh | None = None,
        take_trust: TakeTrust | None = None,
        linger: Linger | None = None,
    ) -> None:
        """Pass all later values to this node, and those since it was made. Raises `SpecError`.

        `weigh` announces the node's weight to others; `take_trust` gives the role the secrets and keys of users'
        tokens; `linger` sets how long turns linger.
        """
        self._engine, self._linked, self._weigh, self._take_trust = engine, True, weigh, take_trust
        self._take_settings, self._linger = take_settings, linger
        if self._spec is not None:
            self._spec = msgspec.structs.replace(self._spec, node=node)
            if self._keys is not None:
                check_number(self._spec, self._keys.allow)
        self._tell()

    def current(self, spec: Spec) -> Spec:
        """The spec with all values that were reloaded since."""
        if self._spec is None:
            return spec
        fields = {name: getattr(self._spec, name) for name in FIELDS.values()}
        return msgspec.structs.replace(spec, **fields, settings=self._spec.settings)

    def reload(self, again: Again) -> bool:
        """Use what can be reloaded, and log the other keys; an error changes nothing. Returns whether there was no
        error."""
        try:
            now = again()
            in_force = {**now.in_force, **self._take(now.told)}
        except Exception as error:  # any error: the running process continues
            self.log.error("not reloaded, the old configuration stays", error=_said(error))
            return False
        level = now.level
        before, self._level = self._level, level
        if before != level:
            in_force[LEVEL] = level
        logs.set_level(min(before, level, key=logs.level_of))  # otherwise this line would not be written
        self.log.info("reloaded", in_force=in_force, needs_restart=list(now.needs_restart))
        logs.set_level(level)
        return True

    def _take(self, told: Spec | None) -> dict[str, Any]:
        if told is None or self._spec is None:
            return {}
        old = self._spec
        spec = msgspec.structs.replace(_typed(told), node=old.node)
        of = kind(spec.role)
        keys = _keys(spec)
        if self._linked and keys is not None and self._keys is not None:  # otherwise no links have to follow
            succeed(self._keys, keys)
        trust = trust_of(spec)
        changed = {
            key: getattr(spec, name) for key, name in FIELDS.items() if getattr(spec, name) != getattr(old, name)
        }
        taken: dict[str, Any] = {}
        for key, name in of.reloads.items():
            was, now = _at(old.settings, name), _at(spec.settings, name)
            if was != now:
                changed[key] = now
            taken[name.partition(".")[0]] = getattr(spec.settings, name.partition(".")[0])
        spec = msgspec.structs.replace(spec, settings=msgspec.structs.replace(old.settings, **taken))
        if keys is not None and self._keys is not None:
            if keys.other != self._keys.other and spec.other_secret_file:
                # changed too if only the file's content did
                changed["cluster.other_secret_file"] = spec.other_secret_file
            if keys.allow != self._keys.allow and spec.nodes_file:
                changed["cluster.nodes_file"] = spec.nodes_file
        if self._trust is not None:
            was_said, is_said = _contents(self._trust), _contents(trust)
            for name in was_said:
                if was_said[name] != is_said[name] and getattr(spec, name):
                    changed[f"cluster.{name}"] = getattr(spec, name)  # changed too if only the file's content did
        before = self._spec, self._keys, self._trust
        self._spec, self._keys, self._trust = spec, keys, trust
        try:
            self._tell()
        except Exception:
            self._spec, self._keys, self._trust = before
            self._tell()
            raise
        return changed

    def _tell(self) -> None:
        if self._spec is None:
            return
        if self._engine is not None and self._keys is not None:
            self._engine.cluster_keys(self._keys.current, self._keys.other, self._keys.allow)
        if self._take_settings is not None:
            self._take_settings(self._spec.settings)
        if self._take_trust is not None and self._trust is not None:
            self._take_trust(self._trust)
        if self._linger is not None:
            self._linger(self._spec.linger_us)
        if self._weigh is not None and self._spec.weight is not None:
            self._weigh(self._spec.weight)


def _typed(spec: Spec) -> Spec:
    """The spec with its settings as their struct. Raises `SpecError`."""
    return msgspec.structs.replace(spec, settings=settings(kind(spec.role), spec))


def _keys(spec: Spec) -> ClusterKeys | None:
    """The secrets of the spec's links; None if the role has none. Raises `SpecError`."""
    return cluster_keys(spec) if kind(spec.role).linked else None


def _contents(trust: Trust) -> dict[str, object]:
    """For each field of a spec, the content of the file that it names."""
    return {
        "jwt_secret_file": trust.secrets,
        "jwks": trust.keys,
        "revoked_file": (trust.users, trust.tokens),
    }


def _at(told: Any, path: str) -> Any:
    """Return a field of the settings, or a nested field."""
    for name in path.split("."):
        told = getattr(told, name)
    return told


def _said(error: Exception) -> str:
    """Format an error as one line."""
    if isinstance(error, UserError | SpecError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    return f"{type(error).__name__}: {error}"


def succeed(before: ClusterKeys, now: ClusterKeys) -> None:
    """Check that a node that runs with `before` may continue with `now`. Raises `SpecError`."""
    number, secret = before.current
    known = dict(key for key in (now.current, now.other) if key is not None)
    if number not in known:
        raise SpecError(
            f"cluster.key_id: new links use key {number} now; keep it in cluster.other_secret_file and "
            "cluster.other_key_id until all nodes use the next key for theirs"
        )
    if known[number] != secret:
        raise SpecError(f"cluster.key_id: key {number} has a different secret now; give a new secret a new id")
    if before.allow is not None and now.allow is not None and before.allow.own != now.allow.own:
        raise SpecError("cluster.node_key_file: the key has changed, which needs a restart")
