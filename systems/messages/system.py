"""The system of delayed messages: four roles.

`receive` accepts and changes messages, as HTTP faces do themselves; `center` owns the schedule, `messages-worker` makes
callbacks, `messages-admin` owns the topics and answers operators. The schedule is the truth; messages between nodes only
wake them up.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from muster_server.plane import ways
from muster_server.plane.kind import Action, Around, Pods, RoleKind, Secret, System, numbers
from muster_server.systems.messages.options import AdminOptions, CenterOptions, ReceiveOptions, WorkerOptions
from muster_server.systems.messages.targets import ALWAYS, Kind

RECEIVE: Final = "receive"
CENTER: Final = "center"
WORKER: Final = "messages-worker"
ADMIN: Final = "messages-admin"
LOOPBACK: Final = "127.0.0.0/8, ::1/128"
MISSING: Final = "delayed messages need more libraries; to mend: pip install 'muster-server[messages]'"


class MessagesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of any of the roles. `options`: those of its own section."""

    folder: str
    """Folder of the instance or the node."""
    topics: str
    """The folder of the file of topics."""
    schedule: str = ""
    """The folder of the schedule: the center's own; the node that writes the topics finds their copy there."""
    instance: str
    password_file: str = ""
    """Password file of the schedule in Redis."""
    certificates: tuple[str, str, str] = ("", "", "")
    """For callbacks: files of authorities, of the worker's certificate, of its key."""
    targets: tuple[Kind, ...]
    """Kinds of targets that workers can reach."""
    options: dict[str, Any]


def told(around: Around) -> dict[str, Any]:
    """The settings of a receiver, for an HTTP face that accepts messages itself; empty: messages are not enabled here."""
    return msgspec.to_builtins(_settle(around.section(RECEIVE), around)) if around.runs("messages") else {}


def _folder(around: Around, given: str) -> str:
    return around.absolute(given) or str(around.folder / "messages")


def _settle(options: Any, around: Around) -> MessagesSettings:
    center = around.section("center").dir
    more: dict[Kind, bool] = {"kafka": bool(around.section("callbacks").kafka), "user": around.runs("presence")}
    more |= {each: around.runs(ways.owner(each)) for each in ways.targets()}
    return MessagesSettings(
        folder=str(around.folder),
        topics=_folder(around, around.section("messages").dir),
        schedule=str(Path(_folder(around, center)) / "schedule"),
        instance=around.instance,
        password_file=around.absolute(options.schedule_password_file) if isinstance(options, CenterOptions) else "",
        certificates=_certificates(options, around),
        targets=tuple(sorted(ALWAYS | {kind for kind, reached in more.items() if reached})),
        options=msgspec.to_builtins(options),
    )


def _certificates(options: Any, around: Around) -> tuple[str, str, str]:
    if not isinstance(options, WorkerOptions):
        return "", "", ""
    ca, certificate, key = (
        around.absolute(each) for each in (options.ca_file, options.tls_cert_file, options.tls_key_file)
    )
    return ca, certificate, key


def lacks(section: Callable[[str], Any]) -> str | None:
    """Why none of the roles can run; None: nothing is missing."""
    if not find_spec("cronsim"):
        return MISSING
    center = section("center")
    if center.schedule and not find_spec("redis"):
        return MISSING
    if (center.log or section("callbacks").kafka) and not find_spec("confluent_kafka"):
        return "center.log and callbacks.kafka need a library; to mend: pip install 'muster-server[kafka]'"
    return None


def networks(text: str) -> list[str]:
    """Parse the networks of `callbacks.allowed`."""
    return [each.strip() for each in text.split(",") if each.strip()]


def _kind(
    name: str,
    slot: int,
    process: Any,
    about: str,
    options: Any,
    build: str,
    secrets: frozenset[Secret] = frozenset({"token"}),
    **more: Any,
) -> RoleKind[Any, MessagesSettings]:
    return RoleKind(
        name=name,
        process=process,
        numbers=numbers(slot),
        about=about,
        options=options,
        settings=MessagesSettings,
        settle=_settle,
        build=build,
        secrets=secrets,
        registers="serving",
        row=70,
        check=lacks,
        **more,
    )


SYSTEM: Final = System(
    name="messages",
    title="Delayed messages",
    about="a callback in 30 minutes, or after a commit",
    kinds=(
        _kind(
            CENTER,
            10,
            "face",
            "owns the schedule of delayed messages",
            CenterOptions,
            "muster_server.systems.messages.center_service:build",
            ends=48,
            received="muster_messages_accepted_total",
            sent="muster_messages_fired_total",
            carried="muster_messages_fired_total",
            pods=Pods(port=8090, replicas=1, memory_max="4Gi"),
        ),
        _kind(
            ADMIN,
            11,
            "face",
            "owns the topics of delayed messages, and answers operators",
            AdminOptions,
            "muster_server.systems.messages.admin_service:build",
            section="messages",
            ends=44,
            pods=Pods(port=8091, replicas=1),
        ),
        _kind(
            RECEIVE,
            12,
            "face",
            "accepts delayed messages, and changes of them",
            ReceiveOptions,
            "muster_server.systems.messages.receive_service:build",
            plural="receives",
            count_why="requests spread over them",
            ends=45,
            pods=Pods(port=8092),
        ),
        _kind(
            WORKER,
            13,
            "worker",
            "makes the callbacks of delayed messages",
            WorkerOptions,
            "muster_server.systems.messages.worker_service:build",
            secrets=frozenset({"token", "cluster"}),  # nodes of other systems, to which targets lead, demand it
            section="callbacks",
            plural="callback_workers",
            count_why="each makes thousands of callbacks per second",
            ends=46,
            pods=Pods(port=8093),
        ),
    ),
    presets={"callbacks.allowed": LOOPBACK},
    tour=(
        "muster topic create tea --callback room:tea >/dev/null 2>&1",
        "muster sub tea --count 1 & tea=$!",
        "muster delay send tea 'the tea is ready' --in 3s",
        "wait $tea; muster topic stats tea",
    ),
    commands="muster_server.systems.messages.cli.words:add",
    stores="muster_server.systems.messages.stores:stores",
    load="muster_server.systems.messages.load",
    load_word="muster_server.systems.messages.cli.load:add",
    size="muster_server.systems.messages.size",
    check="muster_server.systems.messages.check:wrong",
    doctor="muster_server.systems.messages.doctor:examined",
    actions=(
        Action("send", "send delayed messages to these topics"),
        Action(
            "change",
            "cancel, postpone and advance messages of these topics, replay or drop dead letters, and set recurring ones",
        ),
        Action("show", "read messages, dead letters and figures of these topics"),
        Action("target", "send delayed messages to these addresses, as https://shop.example/* or kafka:orders"),
        Action("work", "lease messages of these topics, and say what came of them"),
        Action("manage", "change the settings of these topics, and rotate their secrets"),
    ),
    http="muster_server.systems.messages.http.routes",
    http_settings="muster_server.systems.messages.system:told",
    outlet="muster_server.systems.messages.outlet:made",
)
