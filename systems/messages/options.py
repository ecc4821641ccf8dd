"""The sections of delayed messages in the configuration. Owns the keys and their bounds."""

from typing import Annotated

from muster_server.plane.log.place import URL
from muster_server.plane.options import FaceOptions, Section, key


class ReceiveOptions(FaceOptions, frozen=True):
    """Accepts messages and changes of them, for the HTTP face, the command and other programs of the cluster."""

    body_bytes_max: Annotated[
        int,
        key(
            "Largest body of one message",
            "a callback carries it whole; the store takes 1 MiB with all that goes with it",
            "bytes",
            ge=1,
            le=1_000_000,
        ),
    ] = 262_144
    delay_days_max: Annotated[int, key("Longest delay", "ten years", "days", ge=1, le=3_653)] = 3_653


class CenterOptions(FaceOptions, frozen=True):
    """Owns the schedule: what is due when, who may fire it, what came of it."""

    dir: Annotated[str, key("Folder of the schedule; one process at a time", "empty: `messages` in `instance.dir`")] = (
        ""
    )
    schedule: Annotated[
        str,
        key(
            "The schedule in Redis: `redis://USER@HOST:PORT/DB`, `rediss://…`, `redis+sentinel://HOST:PORT,…/MASTER`, "
            "`redis+cluster://HOST:PORT,…`; centers on other machines wait to take it over",
            "empty: in `dir`",
        ),
    ] = ""
    schedule_password_file: Annotated[str, key("File with the password of the user of that Redis, one line", "")] = ""
    log: Annotated[
        str,
        key(
            "The log before the schedule, in Kafka: `kafka://HOST:PORT,HOST:PORT/PREFIX`; what is answered is there, and a "
            "schedule that is lost or came back older is made again from it",
            "empty: none; the schedule in `dir` has its own",
            pattern=rf"^(|{URL})$",
        ),
    ] = ""
    log_replicas: Annotated[
        int, key("Copies of that log, if its topic is not there yet", "one server has one", "", ge=1, le=16)
    ] = 1
    near_s: Annotated[
        int,
        key("Messages due within this time are in memory", "firing waits for no read of a file", "s", ge=1, le=540),
    ] = 60
    history_hours: Annotated[
        int,
        key(
            "How long a message that came to its end is known, and its id not taken a second time",
            "longer than producers retry",
            "hours",
            ge=1,
            le=24 * 365,
        ),
    ] = 24
    ahead_hours: Annotated[
        int,
        key(
            "How long a cancel or a postponement waits for its message", "a producer's own queue", "hours", ge=1, le=720
        ),
    ] = 24
    dead_days: Annotated[
        int,
        key(
            "How long dead letters are kept; those dropped after it are counted",
            "a month to look at them",
            "days",
            ge=1,
            le=3_650,
        ),
    ] = 30
    overdue_rate: Annotated[
        int,
        key(
            "Messages a second that are fired late, after a stop, the oldest first",
            "targets are not flooded by what waited",
            "1/s",
            ge=1,
            le=1_000_000,
        ),
    ] = 2_000


class WorkerOptions(Section, frozen=True):
    """Makes the callbacks."""

    allowed: Annotated[
        str,
        key(
            "Networks that callbacks may go to beside public addresses, separated by commas, as `10.1.0.0/16`",
            "a callback to a private address is refused after its name is resolved; `muster up` allows loopback",
        ),
    ] = ""
    kafka: Annotated[
        str,
        key(
            "Servers of Kafka for targets `kafka:TOPIC`: `kafka://HOST:PORT,HOST:PORT`",
            "empty: such targets are refused",
            pattern=r"^(|kafka://[^/@,: ]+:\d+(?:,[^/@,: ]+:\d+)*)$",
        ),
    ] = ""
    ca_file: Annotated[
        str, key("File of authorities whose certificates targets may show, beside the public ones (PEM)", "empty: none")
    ] = ""
    tls_cert_file: Annotated[
        str,
        key(
            "File of the certificate that is shown to a target that asks for one, and of those that signed it (PEM)",
            "empty: none",
        ),
    ] = ""
    tls_key_file: Annotated[str, key("File of that certificate's private key (PEM)", "")] = ""
    concurrency: Annotated[
        int,
        key(
            "Callbacks of one topic to one URL at once; a server takes four times as many from all its URLs",
            "a slow target holds up only itself",
            "calls",
            ge=1,
            le=10_000,
        ),
    ] = 64
    rate: Annotated[
        int, key("Callbacks to one server a second; 0: as many as it takes", "", "1/s", ge=0, le=1_000_000)
    ] = 0
    in_flight_max: Annotated[
        int, key("Callbacks at once to all targets", "a socket each", "calls", ge=1, le=65_536)
    ] = 4_096
    held_max: Annotated[
        int,
        key(
            "Messages of one topic that a worker holds at once",
            "enough for 10,000 a second; what it holds is under a claim",
            "messages",
            ge=1,
            le=65_536,
        ),
    ] = 1_024


class AdminOptions(FaceOptions, frozen=True):
    """Topics, lists of messages, dead letters and figures, for operators."""

    dir: Annotated[
        str, key("Folder of the topics, which all nodes of the system read", "empty: `messages` in `instance.dir`")
    ] = ""
    topics_max: Annotated[int, key("Topics at most", "each is held by every node", "topics", ge=1, le=100_000)] = 10_000
