"""What comes into force while a process runs: the level of its logs, the cluster's secrets, what engine or prober take.

Owns what is in force. Reading the configuration again is elsewhere (`control/cluster/daemon.py`,
`control/node/process.py`, `control/cluster/supervisor.py`). How a secret is replaced: docs/operations.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import structlog

from control.config.load import values
from control.config.options import Config, Probes
from control.errors import UserError
from control.node import logs
from plane.auth import signing_secrets
from plane.engine import Engine
from plane.keys import ClusterKeys, check_number, cluster_keys
from plane.role import TakeSecrets
from plane.spec import Spec, SpecError

LEVEL: Final = "log.level"
FIELDS: Final[Mapping[str, str]] = {
    "cluster.secret_file": "cluster_secret_file",
    "cluster.key_id": "key_id",
    "cluster.other_secret_file": "other_secret_file",
    "cluster.other_key_id": "other_key_id",
    "cluster.identity": "identity",
    "cluster.nodes_file": "nodes_file",
    "cluster.jwt_secret_file": "jwt_secret_file",
    "gateway.history_max": "history_max",
    "proxy.command_rate": "command_rate",
    "proxy.command_burst": "command_burst",
    "clients.backoff_ms": "backoff_ms",
    "clients.backoff_max_ms": "backoff_max_ms",
    **{f"{role}.{name}": name for role in ("gateway", "proxy") for name in ("sessions_max", "accept_rate")},
    "serve.weight": "weight",
}
"""Keys of the configuration that a running engine takes, and what they are called in a spec."""
PROBES: Final = tuple(f"probes.{name}" for name in Probes.__struct_fields__ if name != "ask")
"""Those that a running prober takes; who asks it reads where it is each time."""
OF_ALL: Final = frozenset({"cluster", "clients", "serve"})
"""Sections of an engine's keys that are of no role."""
RELOADED: Final = frozenset({LEVEL, *FIELDS, *PROBES})
"""Keys that come into force by SIGHUP; all others need a restart."""


@dataclass(frozen=True, slots=True)
class Now:
    """What is to be in force now."""

    level: str
    told: Spec | Probes | None = None
    """What the engine, or the prober, of this process is told."""
    needs_restart: Sequence[str] = ()
    """Other keys that have changed."""
    in_force: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keys that other processes take by this one."""


Again = Callable[[], Now]
"""Reads it. Raises whatever keeps it from that."""

Weigh = Callable[[int], None]
Limit = Callable[[Probes], None]
"""A prober's `limit`."""


def merged(began: Config, now: Config) -> Config:
    """What `began` becomes by a reload: of `now` all that comes into force."""
    sections: dict[str, dict[str, Any]] = {}
    for key in RELOADED:
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = getattr(getattr(now, section), name)
    changed = {
        section: msgspec.structs.replace(getattr(began, section), **values) for section, values in sections.items()
    }
    return msgspec.structs.replace(began, **changed)


def reloading(before: Config, now: Config) -> dict[str, Any]:
    """Keys whose values differ and come into force, with the new ones."""
    was = dict(values(before))
    return {key: value for key, value in values(now) if key in RELOADED and was.get(key) != value}


def needing_restart(before: Config, now: Config, others: tuple[str, ...]) -> list[str]:
    """Keys whose values differ and do not come into force, but for those that begin as `others` do."""
    was, is_now = dict(values(before)), dict(values(now))
    changed = {key for key in was.keys() | is_now.keys() if was.get(key) != is_now.get(key)}
    return sorted(key for key in changed - RELOADED if not key.startswith(others))


class Live:
    """What is in force in this process. `told`: what its engine, or its prober, was told.

    `linked`: links are made by it already, as those of the nodes of an instance are by what its supervisor was told.
    """

    def __init__(
        self,
        log: structlog.typing.FilteringBoundLogger,
        level: str,
        told: Spec | Probes | None = None,
        *,
        linked: bool = False,
    ) -> None:
        """Raises `SpecError`."""
        self.log, self._level = log, level
        self._spec = told if isinstance(told, Spec) else None
        self._keys = None if self._spec is None else cluster_keys(self._spec)
        self._secrets = () if self._spec is None else signing_secrets(self._spec.jwt_secret_file)
        self._engine: Engine | None = None
        self._linked = linked
        self._weigh: Weigh | None = None
        self._take_secrets: TakeSecrets | None = None
        self._probes = told if isinstance(told, Probes) else None
        self._limit: Limit | None = None

    def attach(
        self, engine: Engine, node: int, weigh: Weigh | None = None, take_secrets: TakeSecrets | None = None
    ) -> None:
        """From now on this engine takes what comes, and what came since it was made. Raises `SpecError`.

        `weigh` tells others the node's weight, `take_secrets` the role by what users' tokens are signed.
        """
        self._engine, self._linked, self._weigh, self._take_secrets = engine, True, weigh, take_secrets
        if self._spec is not None and self._keys is not None:
            self._spec = msgspec.structs.replace(self._spec, node=node)
            check_number(self._spec, self._keys.allow)
        self._tell()

    def attach_prober(self, limit: Limit) -> None:
        """From now on this prober takes what comes, and what came since it was made."""
        self._limit = limit
        if self._probes is not None:
            limit(self._probes)

    def current(self, spec: Spec) -> Spec:
        """The spec with what came into force since it was made."""
        if self._spec is None:
            return spec
        return msgspec.structs.replace(spec, **{name: getattr(self._spec, name) for name in FIELDS.values()})

    def reload(self, again: Again) -> bool:
        """Put in force what can be, name what cannot; what is wrong changes nothing. Whether all was well."""
        try:
            now = again()
            in_force = {**now.in_force, **self._take(now.told)}
        except Exception as error:  # whatever it is, who runs goes on
            self.log.error("not reloaded, the old configuration stays", error=_said(error))
            return False
        level = now.level
        before, self._level = self._level, level
        if before != level:
            in_force[LEVEL] = level
        logs.set_level(min(before, level, key=logs.level_of))  # else this would not be written
        self.log.info("reloaded", in_force=in_force, needs_restart=list(now.needs_restart))
        logs.set_level(level)
        return True

    def _take(self, told: Spec | Probes | None) -> dict[str, Any]:
        if isinstance(told, Probes):
            return self._take_probes(told)
        return {} if told is None else self._take_spec(told)

    def _take_probes(self, now: Probes) -> dict[str, Any]:
        before, self._probes = self._probes, now
        if self._limit is not None:
            self._limit(now)
        names = (key.partition(".")[2] for key in PROBES)
        return {f"probes.{name}": getattr(now, name) for name in names if getattr(before, name) != getattr(now, name)}

    def _take_spec(self, spec: Spec) -> dict[str, Any]:
        if self._spec is None or self._keys is None:
            return {}
        spec = msgspec.structs.replace(spec, node=self._spec.node)
        keys = cluster_keys(spec)
        if self._linked:  # else there are no links that it has to follow
            succeed(self._keys, keys)
        secrets = signing_secrets(spec.jwt_secret_file)
        changed = {
            key: getattr(spec, name)
            for key, name in FIELDS.items()
            if self._differs(spec, name) and key.partition(".")[0] in {spec.role, *OF_ALL}
        }
        if keys.other != self._keys.other and spec.other_secret_file:
            changed["cluster.other_secret_file"] = spec.other_secret_file  # another content of the same file, too
        if keys.allow != self._keys.allow and spec.nodes_file:
            changed["cluster.nodes_file"] = spec.nodes_file
        if secrets != self._secrets and spec.jwt_secret_file:
            changed["cluster.jwt_secret_file"] = spec.jwt_secret_file
        before = self._spec, self._keys, self._secrets
        self._spec, self._keys, self._secrets = spec, keys, secrets
        try:
            self._tell()
        except Exception:
            self._spec, self._keys, self._secrets = before
            self._tell()
            raise
        return changed

    def _differs(self, spec: Spec, name: str) -> bool:
        return bool(getattr(spec, name) != getattr(self._spec, name))

    def _tell(self) -> None:
        if self._engine is None or self._spec is None or self._keys is None:
            return
        self._engine.cluster_keys(self._keys.current, self._keys.other, self._keys.allow)
        if self._spec.history_max is not None:
            self._engine.history_max(self._spec.history_max)
        if self._spec.backoff_ms is not None and self._spec.backoff_max_ms is not None:
            self._engine.backoff(self._spec.backoff_ms, self._spec.backoff_max_ms)
        if self._spec.sessions_max is not None and self._spec.accept_rate is not None:
            self._engine.session_limits(self._spec.sessions_max, self._spec.accept_rate)
        if self._spec.command_rate is not None and self._spec.command_burst is not None:
            self._engine.command_limit(self._spec.command_rate, self._spec.command_burst)
        if self._take_secrets is not None:
            self._take_secrets(self._secrets)
        if self._weigh is not None and self._spec.weight is not None:
            self._weigh(self._spec.weight)


def _said(error: Exception) -> str:
    """In one line."""
    if isinstance(error, UserError | SpecError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    return f"{type(error).__name__}: {error}"


def succeed(before: ClusterKeys, now: ClusterKeys) -> None:
    """Check that who runs with the one may go on with the other. Raises `SpecError`."""
    number, secret = before.current
    known = dict(key for key in (now.current, now.other) if key is not None)
    if number not in known:
        raise SpecError(
            f"cluster.key_id: links are made with key {number} now: keep it, as cluster.other_secret_file and "
            "cluster.other_key_id, until all nodes make theirs with the next one"
        )
    if known[number] != secret:
        raise SpecError(f"cluster.key_id: key {number} is another secret now; a new secret has a new id")
    if before.allow is not None and now.allow is not None and before.allow.own != now.allow.own:
        raise SpecError("cluster.node_key_file: has another key now, which needs a restart")
