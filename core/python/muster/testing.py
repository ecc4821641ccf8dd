"""A whole instance inside a test: `async with muster.testing.instance() as address:`, then `muster.connect(address)`.

Proxy, broker, router and gateway run on the test's own loop, over UDP on free loopback ports. They are the real
engines, without mocks, and leave nothing behind. A test can stop and start each role. They come with
`pip install 'muster[testing]'`; without it, `instance` says so.
"""

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, Protocol

from .client import Fault
from .errors import Invalid
from .instance import Address, Endpoint
from .turns import Engine, Event, Turns

__all__ = ["Instance", "Role", "User", "instance"]

Role = Literal["router", "broker", "gateway", "proxy"]
_Named = tuple[str, int, bytes, int]
Node = tuple[int, str, str, int, int, str]
ROLES: Final[tuple[Role, ...]] = ("router", "broker", "gateway", "proxy")
NODES: Final[Mapping[Role, int]] = {role: node for node, role in enumerate(ROLES, 1)}
HOST: Final = "127.0.0.1"
COMMAND_RATE: Final = 1
COMMAND_BURST: Final = 1
BUFFER_BYTES: Final = 1 << 20
ARENA_BYTES: Final = 64 << 20
PAYLOAD_BYTES: Final = 1_200
KEEPALIVE_MS: Final = 200
IDLE_TIMEOUT_MS: Final = 5_000


class User(NamedTuple):
    """The user of a credential, its rights by pattern of rooms (None: all), and the lifetime of a session in seconds."""

    number: int
    cap: Mapping[str, Sequence[str]] | None = None
    seconds: float | None = None


def _engines() -> Any:
    """The compiled module with the engines of servers, which is no part of this distribution."""
    try:
        return import_module("muster_server._engines")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "muster_server":
            raise
    raise ModuleNotFoundError(
        "muster.testing needs the servers' engines; install them with: pip install 'muster[testing]'",
        name="muster_server",
    )


def _json(**settings: Any) -> bytes:
    """Settings as engines read them."""
    return json.dumps(settings).encode()


class _Server(Engine, Protocol):
    def addresses(self) -> list[tuple[str, int]]:
        """Return the bound addresses, the clients' address first."""

    def placement(self, epoch: int, nodes: list[Node], partitions: tuple[int, int]) -> None:
        """Give the engine the map of all nodes."""

    def servers(self, gateways: list[_Named], proxies: list[_Named]) -> None:
        """Give the engine the servers that it names to clients."""


class Instance(Address):
    """The address of an instance in this process, and the roles behind it."""

    def __init__(
        self,
        tokens: Mapping[bytes, int | User],
        paced_namespaces: Sequence[str],
        faults: Sequence[Fault] | None,
        command_limit: tuple[int, int],
    ) -> None:
        self._tokens, self._paced, self._faults = dict(tokens), list(paced_namespaces), faults
        self._command_limit = command_limit
        self._made = _engines()
        self._secrets = {name: secrets.token_bytes(32) for name in ("cluster", "reset", "gateway", "proxy")}
        self._name_key = secrets.token_bytes(16)
        self._epochs: dict[Role, int] = {}
        self._running: dict[Role, Turns] = {}
        self._engines: dict[Role, Any] = {}
        self._ports: dict[Role, list[int]] = {}
        self._errors: list[BaseException] = []
        for role in ROLES:
            self._make(role)
        self._nodes: list[Node] = [(NODES[role], role, HOST, self._ports[role][-1], 0, "running") for role in ROLES]
        for role in ROLES:
            self._run(role)
        super().__init__((self._endpoint("gateway"),), (self._endpoint("proxy"),), next(iter(self._tokens)))

    def stop(self, role: Role) -> None:
        """Stop a role as a crash would: it sends no goodbye."""
        self._engine(role)
        self._running.pop(role).close()
        del self._engines[role]

    def start(self, role: Role) -> None:
        """Start a stopped role again, at the same address and with empty state."""
        if role in self._running:
            raise Invalid(f"the {role} runs already; stop it first")
        self._make(role)
        self._run(role)

    def restart(self, role: Role) -> None:
        """Stop and start one role."""
        self.stop(role)
        self.start(role)

    def status(self, role: Role) -> dict[str, Any]:
        """Return the status of the role's engine."""
        status: dict[str, Any] = self._engine(role).status()
        return status

    def close(self) -> None:
        """Stop all roles. Raises the first error that an engine raised while it ran."""
        for role in list(self._running):
            self.stop(role)
        if self._errors:
            raise self._errors[0]

    def _engine(self, role: Role) -> Any:
        if role not in ROLES:
            raise Invalid(f"invalid role {role!r} (expected one of {', '.join(ROLES)})")
        if role not in self._running:
            raise Invalid(f"the {role} does not run; start it first")
        return self._engines[role]

    def _endpoint(self, role: Role) -> Endpoint:
        return HOST, self._ports[role][0], bytes(self._made.public_key(self._secrets[role])).hex()

    def _named(self, role: Role) -> _Named:
        host, port, key = self._endpoint(role)
        return host, port, bytes.fromhex(key), 1

    def _make(self, role: Role) -> None:
        self._epochs[role] = self._epochs.get(role, 0) + 1
        ports = self._ports.get(role, [0, 0])
        link: dict[str, Any] = {
            "node": NODES[role],
            "epoch": self._epochs[role],
            "link_bind": (HOST, ports[-1]),
            "cluster_key": (1, self._secrets["cluster"]),
            "seed": secrets.randbits(63),
            "recv_buffer": BUFFER_BYTES,
            "send_buffer": BUFFER_BYTES,
            "payload_bytes": PAYLOAD_BYTES,
            "faults": list(self._faults) if self._faults else None,
        }
        engine: _Server
        if role == "router":
            engine = self._made.RouterEngine(link, b"{}")
        elif role == "broker":
            engine = self._made.BrokerEngine(link, self._name_key, _json(arena_bytes=ARENA_BYTES))
        else:
            door = {
                "bind": (HOST, ports[0]),
                "name_key": self._name_key,
                "server_key": self._secrets[role],
                "reset_secret": self._secrets["reset"],
            }
            times = {"keepalive_ms": KEEPALIVE_MS, "idle_timeout_ms": IDLE_TIMEOUT_MS}
            if role == "proxy":
                rate, burst = self._command_limit
                engine = self._made.ProxyEngine(link, door, _json(**times, command_rate=rate, command_burst=burst))
            else:
                settings = _json(**times, arena_bytes=ARENA_BYTES, paced_namespaces=self._paced)
                engine = self._made.GatewayEngine(link, door, settings)
        self._engines[role] = engine
        self._ports[role] = [port for _, port in engine.addresses()]

    def _run(self, role: Role) -> None:
        engine = self._engines[role]
        engine.placement(1, self._nodes, (1, 1))
        engine.servers(*([self._named(server)] for server in ("gateway", "proxy")))

        def on_events(events: list[Event]) -> None:
            for name, *fields in events:
                if name == "authenticate":
                    question, credential = fields
                    self._answer(engine, question, self._tokens.get(credential))

        self._running[role] = Turns(engine, on_events, self._errors.append)

    def _answer(self, engine: Any, question: int, known: int | User | None) -> None:
        if not isinstance(known, User):
            engine.answer(question, known)
            return
        grant = (
            None
            if known.cap is None
            else self._made.Grant([(pattern, list(words)) for pattern, words in known.cap.items()])
        )
        left_ms = None if known.seconds is None else int(known.seconds * 1_000)
        engine.answer(question, known.number, grant=grant, left_ms=left_ms)


@contextlib.asynccontextmanager
async def instance(
    *,
    tokens: Mapping[bytes, int | User] | None = None,
    paced_namespaces: Sequence[str] = (),
    faults: Sequence[Fault] | None = None,
    command_rate: int = COMMAND_RATE,
    command_burst: int = COMMAND_BURST,
) -> AsyncIterator[Instance]:
    """Run an instance while the block lasts, and yield its address for `muster.connect`.

    Raises `ModuleNotFoundError` without the servers' engines (`muster[testing]`).

    `tokens`: credentials and their users, numbers or `User`; the first one is the address's own. By default there is one
    random token for user 1, whose sessions are limited one by one. `paced_namespaces`: namespaces of paced rooms.
    `faults`: injected into all traffic of every role. `command_rate`, `command_burst`: commands of a user a second, and at
    once.
    """
    tokens = tokens or {secrets.token_urlsafe(16).encode(): _engines().SHARED_USER}
    running = Instance(tokens, paced_namespaces, faults, (command_rate, command_burst))
    try:
        yield running
    finally:
        running.close()
