"""The descriptor of a role, from which every list of roles is derived.

Owns the words of a descriptor. It must not know any role: each is in the folder of its system, and `systems/listed.py`
lists the systems.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from muster_server.plane.options import Section

Process = Literal["machine", "face", "worker"]
"""`machine`: links, and perhaps clients, over UDP. `face`: a server with a protocol of its own, over TCP.
`worker`: no listener beside administration."""
Shape = Literal["replicated", "partitioned"]
"""`replicated`: all nodes of the role are alike. `partitioned`: each is a replica of one partition of its layer."""
Secret = Literal["cluster", "names", "token", "probe", "users"]
"""`token`: the shared one; `probe`: the prober's own; `users`: those that judge users' tokens."""
Right = Literal["read", "publish"]

O = TypeVar("O", bound=Section)  # noqa: E741 - options
S = TypeVar("S", bound=msgspec.Struct)  # settings

PLACES_MAX: Final = 2_500
"""Most nodes of one role over the whole life of an instance, ended ones included."""
LATER: Final = 1 << 30
"""The first number of the roles' own ranges, above all numbers of named `muster serve` nodes. A range holds `RANGE`
numbers."""
RANGE: Final = 4_096


def numbers(slot: int) -> range:
    """The node numbers of one role on `muster up`: the range `slot`, which no other role ever had.

    The four roles of rooms take turns from 1 to 10,000, as since the first release; `slot` is for all later ones.
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
    """A section of the configuration by its name."""
    instance: str
    folder: Path
    """The folder of the node's, or its instance's, files."""
    partition: int
    absolute: Callable[[str], str]
    """The absolute path of a file that the configuration names; empty stays empty."""
    programs: Mapping[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """Where the programs beside the nodes listen, by name (`System.programs`)."""
    runs: Callable[[str], bool] = lambda system: False
    """Whether a system is enabled (`systems.enabled`)."""


def one(around: Callable[[str], Any]) -> int:
    """The number of nodes of a role that `[up]` does not count: one."""
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """A role on Kubernetes: what its manifest cannot derive from the rest of the descriptor."""

    port: int = 7430
    """Of links; of clients, whose role has links at the next port; or of a face. Doors share the network of a host, so
    each needs ports that no other door has."""
    admin: int = 7490
    """The port of administration."""
    replicas: int = 2
    cpu: str = "1"
    """CPU requested."""
    memory: str = "256Mi"
    """Memory requested."""
    memory_max: str = "1Gi"
    disk: str = ""
    """A disk of its own for what its nodes make durable; empty: none."""
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further keys of the configuration, with their values; `$(POD_IP)` is the pod's address."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys that name files which no other role has, with their names in the Secret `muster-ROLE`, which may be missing."""


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
    """`module:function` that runs something beside the engine, `(spec, engine, log, partitions) -> Companion |
    None`."""
    pages: str = ""
    """`module:function` of further pages of administration, `(engine, path, query) -> Answer | None`."""

    scheme: str = "http"
    """The protocol in the URL of a role that clients reach over TCP."""
    path: str = ""
    """The path of that URL."""
    shape: Shape = "replicated"
    clustered: bool = False
    """A node belongs to one cluster of the partitioned layer; otherwise it serves all clusters."""
    door: Right | None = None
    """The right that a client needs to open a session here; None: no client connects to the role over UDP."""
    listens: bool = False
    """Of a machine: clients connect to it over TCP, at `bind`; its links are at `link_bind`."""
    listed: str = ""
    """The list of `instance.json`, and of `muster.Address`, with the addresses of its nodes for clients; needs a
    `door`."""
    dials: tuple[str, ...] = ()
    """Roles to which its nodes open links."""
    clients: bool = False
    """Clients of machines have links to it as well (faults can be set for them)."""
    secrets: frozenset[Secret] = frozenset()
    """Files with secrets that a node cannot start without."""
    registers: Literal["starting", "serving"] = "starting"
    """When it registers: as soon as it starts, or once it serves."""
    hands_over_to: str = ""
    """At its end it waits until all nodes of this role have what they asked for."""
    awaited: bool = True
    """`muster up` is ready only once its nodes are."""

    plural: str = ""
    """The key of `[up]` with the number of its nodes; empty: `wanted` returns it."""
    count: int | str = 1
    count_why: str = ""
    wanted: Callable[[Callable[[str], Any]], int] = one
    always: bool = False
    """A cluster without a node of the role is incomplete."""
    ends: int = 50
    """Order of stopping on `muster up`: lower ends first."""
    row: int = 50
    """Order in `muster cluster show`: lower comes first."""

    received: str = ""
    """The counter that `muster top` shows as in."""
    sent: str = ""
    """The counter that `muster top` shows as out."""
    carried: str = ""
    """The counter that `muster cluster show` shows per second."""
    published: str = ""
    """The counter that `muster top` adds up as published."""
    delivered: str = ""
    """The counter that `muster top` adds up as delivered."""
    members: str = "muster_members"
    """The gauge that `muster top` shows as members."""

    pods: Pods = Pods()
    reloads: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys of the configuration that a running node takes, and the fields of the settings that hold them."""
    check: Callable[[Callable[[str], Any]], str | None] = lambda section: None
    """Returns what the configuration lacks for `muster serve` of this role; None: nothing."""

    @property
    def key(self) -> str:
        """The section of its options."""
        return self.section or self.name

    @property
    def partitioned(self) -> bool:
        """Whether its nodes are replicas of partitions."""
        return self.shape == "partitioned"

    @property
    def linked(self) -> bool:
        """Whether its nodes have links."""
        return self.process == "machine"

    @property
    def serves(self) -> bool:
        """Whether clients connect to it over TCP."""
        return self.process == "face" or self.listens

    def url(self, host: str, port: int) -> str:
        """The URL by which clients reach a node over TCP at this address."""
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{port}{self.path}"

    @property
    def binds(self) -> tuple[str, ...]:
        """The keys of its addresses: first the one for clients, if there is one; the one for links is the last."""
        if self.process == "worker":
            return ()
        return ("bind", "link_bind") if self.door or self.listens else ("bind",)

    @property
    def shows(self) -> bool:
        """Whether it shows servers a credential, and so must know which keys certify them."""
        return not self.secrets.isdisjoint({"token", "probe"})

    @property
    def certified(self) -> bool:
        """Whether clients show it credentials, so that its entry in the registry needs a certificate."""
        return "token" in self.secrets and self.process != "worker"

    def of(self, told: Any) -> S:
        """The settings of a spec. Raises `msgspec.ValidationError`."""
        return told if isinstance(told, self.settings) else msgspec.convert(told, self.settings)


@dataclass(frozen=True, slots=True)
class Berth:
    """What a program is given for one start."""

    folder: Path
    """Its own, which nobody else may enter."""
    host: str
    port: int
    section: Callable[[str], Any]
    """A section of the configuration by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that others wrote, which `muster up` runs beside a system's nodes; ready once it accepts connections."""

    name: str
    """Also that of its folder."""
    about: str
    """One line: its purpose."""
    binary: str
    """The file to run, looked for in the PATH and the folders of system programs."""
    mend: str
    """How to get it, or how to do without, where it is missing."""
    wanted: Callable[[Callable[[str], Any]], bool]
    """Whether the configuration asks for it; not where it names a server that runs already."""
    bind: Callable[[Callable[[str], Any]], str]
    """The key of its address; port 0: a free one."""
    prepare: str
    """`module:function`, `(berth) -> arguments`: writes its configuration and data into the folder before each start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system: its roles, its further sections, its words of the command."""

    name: str
    title: str
    """Heading of its words in `muster --help`, and its name in the picture of the README."""
    about: str
    """Its use in one line."""
    protocols: tuple[str, ...] = ()
    """How clients reach it, beside HTTP."""
    kinds: tuple[RoleKind[Any, Any], ...]
    sections: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further sections of the configuration: name, and the type, or the annotation of a table of tables."""
    presets: Mapping[str, int | str] = field(default_factory=dict[str, int | str])
    """The values of `muster up` that differ from the defaults."""
    programs: tuple[Program, ...] = ()
    """Programs that `muster up` runs beside its nodes."""
    always: bool = False
    """Runs on every `muster up`; other systems need `--with` or `systems.enabled`."""
    commands: str = ""
    """`module:function` that adds its words to the command `muster`."""
    check: str = ""
    """`module:function` with checks beyond one key's type."""
    demo: str = ""
    """`module:function` of its demo on `muster up --demo`, `async (config, folder, seconds, as_json) -> exit code`."""
    tries: tuple[str, ...] = ()
    """Commands that `muster up` suggests; `{muster}` stands for the program."""
    tour: tuple[str, ...] = ()
    """Lines for a shell that `muster up --demo --tour` runs and shows once; `muster` is the program. A line that ends
    with `&` runs beside those after it."""
    command_keys: tuple[str, ...] = ()
    """Beginnings of keys that only commands read: they mean nothing to a running node."""
    doctor: str = ""
    """`module:function` of its checks for `muster doctor`, `(config, record) -> list[Finding]`; the record is None
    where no instance runs."""
    stores: str = ""
    """`module:function` of its stores in files for `muster check` and `muster repair`, `(config, record) -> list[Store]`,
    see `plane/stores.py`."""
    http_settings: str = ""
    """`module:function` of what its routes are told, `(around) -> dict` for JSON."""
    http: str = ""
    """The module with its routes for the HTTP face: `face` and `ACTIONS`, see `systems/http/face.py`."""
