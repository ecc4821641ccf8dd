"""The descriptor of a role, from which every list of roles is derived.

Owns the fields of a descriptor. It must not know any role: each role is in the folder of its system, and
`systems/listed.py` lists the systems.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from muster_server.plane.options import Section

Process = Literal["machine", "face", "worker"]
"""`machine`: links, and perhaps clients, over UDP. `face`: a server with its own protocol over TCP. `worker`: no
listener except administration."""
Shape = Literal["replicated", "partitioned"]
"""`replicated`: all nodes of the role are alike. `partitioned`: each is a replica of one partition of its layer."""
Secret = Literal["cluster", "names", "token", "probe", "users"]
"""`token`: the shared one; `probe`: the prober's own; `users`: the secrets and keys that verify users' tokens."""
Right = Literal["read", "publish"]

O = TypeVar("O", bound=Section)  # noqa: E741 - options
S = TypeVar("S", bound=msgspec.Struct)  # settings

PLACES_MAX: Final = 2_500
"""Limit of nodes of one role over the whole life of an instance, including ended nodes."""
LATER: Final = 1 << 30
"""Start of the roles' own number ranges, above all numbers of named `muster serve` nodes. A range holds `RANGE`
numbers."""
RANGE: Final = 4_096


def numbers(slot: int) -> range:
    """The node numbers of one role on `muster up`: the range `slot`, which no other role ever had.

    The four roles of rooms share 1 to 10,000 in turn, as since the first release; `slot` is for all later roles.
    """
    first = LATER + RANGE * slot
    return range(first, first + PLACES_MAX)


def named(path: str) -> Callable[..., Any]:
    """Import the function of `module:function`."""
    module, _, name = path.partition(":")
    made: Callable[..., Any] = getattr(import_module(module), name)
    return made


@dataclass(frozen=True, slots=True)
class Around:
    """The surroundings of a node that its settings may depend on."""

    section: Callable[[str], Any]
    """Returns a section of the configuration by its name."""
    instance: str
    folder: Path
    """The folder of the node's, or its instance's, files."""
    partition: int
    absolute: Callable[[str], str]
    """Returns the absolute path of a file that the configuration names; empty stays empty."""
    programs: Mapping[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """Addresses of the programs that run with the nodes, by name (`System.programs`)."""
    runs: Callable[[str], bool] = lambda system: False
    """Whether a system is enabled (`systems.enabled`)."""


def one(around: Callable[[str], Any]) -> int:
    """The number of nodes of a role that `[up]` does not count: one."""
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """A role on Kubernetes: the values of its manifest that do not follow from the rest of the descriptor."""

    port: int = 7430
    """Port of links or of a face; for a role with clients, of clients, and links use the next port. Doors share the
    network of a host, so each needs ports of its own."""
    admin: int = 7490
    """The port of administration."""
    replicas: int = 2
    cpu: str = "1"
    """Requested CPU."""
    memory: str = "256Mi"
    """Requested memory."""
    memory_max: str = "1Gi"
    disk: str = ""
    """Size of a disk for the durable data of its nodes; empty: no disk."""
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further configuration keys, with their values; `$(POD_IP)` is the pod's address."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys that name files which no other role has, with the file names in the Secret `muster-ROLE`, which is optional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleKind(Generic[O, S]):
    """A role. `options` is its section of the configuration; `settings` is its part of a node's spec."""

    name: str
    process: Process
    numbers: range
    """Node numbers on `muster up`, in the order in which nodes start. They never change."""
    about: str
    """One line of help: the role's purpose."""
    options: type[O]
    section: str = ""
    """The section of its options; empty: the role's name."""
    settings: type[S]
    settle: Callable[[O, Around], S]
    build: str
    """`module:function`. For a machine: `(spec, settings) -> plane.role.Role`. For a face or a worker: `(spec, settings,
    context) -> plane.service.Service`."""
    companion: str = ""
    """`module:function` that starts work beside the engine, `(spec, engine, log, partitions) -> Companion | None`."""
    pages: str = ""
    """`module:function` of further pages of administration, `(engine, path, query) -> Answer | None`."""

    scheme: str = "http"
    """Scheme of the URL of a role that clients reach over TCP."""
    path: str = ""
    """Path of that URL."""
    tls: str = ""
    """The key of its section that, unless empty, makes clients connect by TLS: the scheme then ends with `s`."""
    welcome: str = ""
    """`module:function`, `(folder, url) -> url`: the URL that `muster up` prints, if it is more than the plain one."""
    shape: Shape = "replicated"
    clustered: bool = False
    """True: a node belongs to one cluster of the partitioned layer. False: it serves all clusters."""
    door: Right | None = None
    """The right that a client needs to open a session here; None: no client connects to the role over UDP."""
    listens: bool = False
    """Of a machine: clients connect to it over TCP, at `bind`; its links are at `link_bind`."""
    listed: str = ""
    """The list of `instance.json` and `muster.Address` with the addresses of its nodes for clients; needs a `door`."""
    dials: tuple[str, ...] = ()
    """Roles to which its nodes open links."""
    clients: bool = False
    """True: clients of machines have links to this role too, so faults can be set for them."""
    secrets: frozenset[Secret] = frozenset()
    """Secrets without which a node cannot start."""
    registers: Literal["starting", "serving"] = "starting"
    """When a node registers: as soon as it starts, or once it serves."""
    hands_over_to: str = ""
    """When a node ends, it waits until all nodes of this role have fetched what they need."""
    awaited: bool = True
    """True: `muster up` reports ready only once the nodes of this role are."""

    plural: str = ""
    """The key of `[up]` with the number of its nodes; empty: `wanted` returns the number."""
    count: int | str = 1
    count_why: str = ""
    wanted: Callable[[Callable[[str], Any]], int] = one
    always: bool = False
    """A cluster without a node of the role is incomplete."""
    ends: int = 50
    """Order of stopping on `muster up`: lower stops first."""
    row: int = 50
    """Order in `muster cluster show`: lower comes first."""

    received: str = ""
    """The counter that `muster top` shows in the column of incoming messages."""
    sent: str = ""
    """The counter that `muster top` shows in the column of outgoing messages."""
    carried: str = ""
    """The counter that `muster cluster show` shows per second."""
    published: str = ""
    """The counter that `muster top` sums up as published."""
    delivered: str = ""
    """The counter that `muster top` sums up as delivered."""
    members: str = "muster_members"
    """The gauge that `muster top` shows as members."""

    pods: Pods = Pods()
    reloads: Mapping[str, str] = field(default_factory=dict[str, str])
    """Configuration keys that a running node reloads, with the fields of the settings that hold them."""
    check: Callable[[Callable[[str], Any]], str | None] = lambda section: None
    """Returns the error of a configuration that is incomplete for `muster serve` of this role; None: no error."""
    alone: Callable[[S], str | None] = lambda settings: None
    """Returns why no second node can serve beside the first, and how to mend that; None: one can."""

    @property
    def key(self) -> str:
        """Name of its section in the configuration."""
        return self.section or self.name

    @property
    def partitioned(self) -> bool:
        """True: its nodes are replicas of partitions."""
        return self.shape == "partitioned"

    @property
    def linked(self) -> bool:
        """True: its nodes have links."""
        return self.process == "machine"

    @property
    def serves(self) -> bool:
        """Whether clients connect to it over TCP."""
        return self.process == "face" or self.listens

    def secure(self, section: Callable[[str], Any]) -> bool:
        """Whether clients connect to its nodes by TLS, by this configuration."""
        return bool(self.tls and getattr(section(self.section or self.name), self.tls))

    def url(self, host: str, port: int, secure: bool = False) -> str:
        """The URL by which clients reach a node over TCP at this address. `secure`: by TLS."""
        return f"{self.scheme}{'s' if secure else ''}://{f'[{host}]' if ':' in host else host}:{port}{self.path}"

    @property
    def binds(self) -> tuple[str, ...]:
        """The keys of its addresses: first the one for clients, if there is one; the one for links is the last."""
        if self.process == "worker":
            return ()
        return ("bind", "link_bind") if self.door or self.listens else ("bind",)

    @property
    def shows(self) -> bool:
        """True: it presents a credential to servers, so it must know which keys certify them."""
        return not self.secrets.isdisjoint({"token", "probe"})

    @property
    def certified(self) -> bool:
        """True: clients present credentials to it, so its entry in the registry needs a certificate."""
        return "token" in self.secrets and self.process != "worker"

    def of(self, told: Any) -> S:
        """Convert to the settings of this role. Raises `msgspec.ValidationError`."""
        return told if isinstance(told, self.settings) else msgspec.convert(told, self.settings)


@dataclass(frozen=True, slots=True)
class Launch:
    """The folder, address and configuration of a program for one start."""

    folder: Path
    """The program's own folder, closed to other users."""
    host: str
    port: int
    section: Callable[[str], Any]
    """Returns a section of the configuration by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A third-party program that `muster up` runs beside a system's nodes; ready once it accepts connections."""

    name: str
    """Name of the program and of its folder."""
    about: str
    """One line: its purpose."""
    binary: str
    """The executable, searched in PATH and the folders of system programs."""
    mend: str
    """How to install it, or how to do without it."""
    wanted: Callable[[Callable[[str], Any]], bool]
    """Whether the configuration needs it; not if the configuration names a running server."""
    bind: Callable[[Callable[[str], Any]], str]
    """The configured address; port 0: a free one."""
    prepare: str
    """`module:function`, `(launch) -> arguments`: writes its configuration and data into the folder before each start."""


class Into(NamedTuple):
    """A kind of targets of delayed messages that leads into a system: `KIND:NAME`."""

    way: str
    """`module:function` of the way there, `(spec, context, folder) -> plane.ways.Way`."""
    name: str
    """Pattern of the name."""
    expected: str
    """The kind of name, for errors."""
    action: str
    """The action whose scope allows to put something there."""
    bytes_max: int
    """Limit of a message's body."""


class Action(NamedTuple):
    """An action over HTTP that a scope can allow, and the right by which a user may do the same; None: no user may."""

    name: str
    text: str
    right: Right | None = None
    word: str = ""
    """The word that allows it to a user, in the claim `cap` of its token at `NAME:PATTERN`, for example `watch` at
    `presence:7`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system: its roles, its further sections, its subcommands."""

    name: str
    title: str
    """Heading of its commands in `muster --help`, and its name in the picture of the README."""
    about: str
    """Its purpose in one line."""
    protocols: tuple[str, ...] = ()
    """Protocols for clients, besides HTTP."""
    kinds: tuple[RoleKind[Any, Any], ...]
    sections: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further sections of the configuration: name, and the type, or the annotation of a table of tables."""
    presets: Mapping[str, int | str] = field(default_factory=dict[str, int | str])
    """Presets of `muster up` that differ from the defaults."""
    programs: tuple[Program, ...] = ()
    """Programs that `muster up` runs beside its nodes."""
    always: bool = False
    """True: `muster up` always runs it; other systems need `--with` or `systems.enabled`."""
    shown: bool = False
    """True: `muster up --demo` runs it too, unless its libraries are missing."""
    commands: str = ""
    """`module:function` that adds its subcommands to the command `muster`."""
    check: str = ""
    """`module:function` with checks that concern more than one key's type."""
    demo: str = ""
    """`module:function` of its demo on `muster up --demo`, `async (config, folder, seconds, as_json) -> exit code`."""
    page: str = ""
    """`module:function` of its page for people on `muster up --demo`: an async context manager, `(config, folder)`, that
    serves it and gives its URL."""
    tries: tuple[str, ...] = ()
    """Commands that `muster up` suggests; `{muster}` stands for the program."""
    tour: tuple[str, ...] = ()
    """Shell lines that `muster up --demo --tour` runs and shows once; `muster` is the program. A line that ends with
    `&` runs in the background."""
    command_keys: tuple[str, ...] = ()
    """Prefixes of keys that only commands read; running nodes ignore them."""
    load: str = ""
    """The module of its load for `muster load`: its `SETTINGS`, see `control/load/generator.py`."""
    load_word: str = ""
    """`module:function` that adds the word of that load to `muster load`."""
    size: str = ""
    """The module of its part of `muster size`: its `Demand`, its `Costs`, and `plan`, see `control/size/plan.py`."""
    doctor: str = ""
    """`module:function` of its checks for `muster doctor`, `(config, record) -> list[Finding]`; the record is None if
    no instance runs."""
    stores: str = ""
    """`module:function` of its stores in files for `muster check` and `muster repair`, `(config, record) -> list[Store]`,
    see `plane/stores.py`."""
    http_settings: str = ""
    """`module:function` that returns the settings of its HTTP routes, `(around) -> dict` for JSON."""
    actions: tuple[Action, ...] = ()
    """What scopes of API keys can allow over HTTP."""
    http: str = ""
    """The module with its routes for the HTTP face: `face`, see `systems/http/face.py`."""
    targets: Mapping[str, Into] = field(default_factory=dict[str, Into])
    """Kinds of targets of delayed messages that lead into it."""
    calls: Mapping[str, str] = field(default_factory=dict[str, str])
    """Methods that clients of an edge may call, each with `module:function`, `(spec, context) -> plane.ways.Calls`."""
    undelivered: str = ""
    """`module:function` of what hands on messages to users of whom no device has them, as `plane.ways.hands_on`."""
    outlet: str = ""
    """`module:function` of the way into its topics, for other systems that have messages to send, as `Into.way`."""
