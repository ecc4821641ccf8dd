"""What a role is, said once: the descriptor from which every list of roles is derived.

Owns the words of a descriptor. It must not know any role; each stands in the folder of its system, and
`control/systems.py` lists the systems.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from plane.options import Section

Process = Literal["machine", "edge", "worker"]
"""`machine`: links, and perhaps clients, over UDP. `edge`: a server with a protocol of its own, over TCP.
`worker`: no listener beside administration."""
Shape = Literal["replicated", "partitioned"]
"""`replicated`: all nodes of the role are alike. `partitioned`: each is a replica of one partition of its layer."""
Secret = Literal["cluster", "names", "token"]
Right = Literal["read", "publish"]

O = TypeVar("O", bound=Section)  # noqa: E741 - options
S = TypeVar("S", bound=msgspec.Struct)  # settings

PLACES_MAX: Final = 2_500
"""Nodes of one role that an instance can have from its start to its end, those that ended included."""
LATER: Final = 1 << 30
"""The first number of the ranges that roles have for themselves, above all that `muster serve` gives by name.
A range holds `RANGE` numbers."""
RANGE: Final = 4_096


def numbers(slot: int) -> range:
    """The node numbers of one role on `muster up`: the range `slot`, which no other role has ever had.

    The four roles of rooms take turns from 1 to 10,000, as since the first release; `slot` is for all later ones.
    """
    first = LATER + RANGE * slot
    return range(first, first + PLACES_MAX)


def named(path: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
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
    """Where the node, or its instance, keeps its files."""
    partition: int
    absolute: Callable[[str], str]
    """The absolute path of a file that the configuration names; empty stays empty."""


def one(around: Callable[[str], Any]) -> int:
    """How many nodes a role has that is not counted in `[up]`: one."""
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """A role on Kubernetes: what its manifest cannot derive from the rest of the descriptor."""

    port: int = 7430
    """Of links; of clients, whose role has links at the next port; or of an edge. Doors share the network of a host, so
    each needs ports that no other door has."""
    admin: int = 7490
    """The port of administration."""
    replicas: int = 2
    cpu: str = "1"
    """CPU requested."""
    memory: str = "256Mi"
    """Memory requested."""
    memory_max: str = "1Gi"
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further keys of the configuration, with their values; `$(POD_IP)` is the pod's address."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys that name files which no other role has, with their names in the Secret `muster-ROLE`, which may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleKind(Generic[O, S]):
    """A role. Its options are a section of the configuration, its settings what a node's process is told."""

    name: str
    process: Process
    numbers: range
    """Node numbers on `muster up`, in the order in which nodes start. They never change."""
    about: str
    """One line of help: what the role is for."""
    options: type[O]
    section: str = ""
    """The section of its options; empty: called as the role."""
    settings: type[S]
    settle: Callable[[O, Around], S]
    build: str
    """`module:function`. Of a machine: `(spec, settings) -> plane.role.Role`. Of an edge or a worker:
    `(spec, settings, context) -> plane.service.Service`."""
    companion: str = ""
    """`module:function` of what runs beside the engine, `(spec, engine, log, partitions) -> Companion | None`."""
    pages: str = ""
    """`module:function` of further pages of administration, `(engine, path, query) -> Answer | None`."""

    shape: Shape = "replicated"
    clustered: bool = False
    """A node belongs to one cluster of the partitioned layer; without, it serves all clusters."""
    door: Right | None = None
    """The right that a client must have to open a session here; None: no client speaks to the role over UDP."""
    dials: tuple[str, ...] = ()
    """Roles to which its nodes open links."""
    clients: bool = False
    """Clients of machines have links to it as well (faults can be set for them)."""
    secrets: frozenset[Secret] = frozenset()
    """Files of `[cluster]` that a node cannot start without."""
    registers: Literal["starting", "serving"] = "starting"
    """When it registers: as soon as it starts, or once it serves."""
    hands_over_to: str = ""
    """On its end it waits until all nodes of this role have what they asked for."""
    awaited: bool = True
    """`muster up` is ready only once its nodes are."""

    plural: str = ""
    """The key of `[up]` with the number of its nodes; empty: `wanted` says how many."""
    count: int | str = 1
    count_why: str = ""
    wanted: Callable[[Callable[[str], Any]], int] = one
    always: bool = False
    """A cluster without a node of the role lacks one."""
    ends: int = 50
    """Order of stopping on `muster up`: lower ends first."""
    row: int = 50
    """Order in `muster cluster show`: lower stands first."""

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

    pods: Pods = Pods()
    reloads: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys of the configuration that a running node takes, and the fields of the settings that hold them."""
    check: Callable[[Callable[[str], Any]], str | None] = lambda section: None
    """What the configuration lacks for `muster serve` of this role; None: nothing."""

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

    def of(self, told: Any) -> S:
        """The settings out of a spec. Raises `msgspec.ValidationError`."""
        return told if isinstance(told, self.settings) else msgspec.convert(told, self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What is started and configured together: its roles, its further sections, its words of the command."""

    name: str
    about: str
    kinds: tuple[RoleKind[Any, Any], ...]
    sections: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further sections of the configuration: name, and the type, or the annotation of a table of tables."""
    presets: Mapping[str, int | str] = field(default_factory=dict[str, int | str])
    """Where `muster up` differs from the defaults."""
    always: bool = False
    """Runs on every `muster up`; others are asked for by `--with` or `systems.enabled`."""
    commands: str = ""
    """`module:function` that adds its words to the command `muster`."""
    check: str = ""
    """`module:function` that finds what one key's type cannot say."""
    http: str = ""
    """The module with its routes for the HTTP face: `face` and `ACTIONS`, see `control/http/face.py`."""
