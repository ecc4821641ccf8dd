"""The sections of delayed messages in the configuration. Owns the keys and their bounds."""

from typing import Annotated

from muster_server.plane.log.place import URL
from muster_server.plane.options import FaceOptions, Section, key


class ReceiveOptions(FaceOptions, frozen=True):
    """Accepts messages and changes of them, for commands and other systems; HTTP faces have the same limits."""

    body_bytes_max: Annotated[
        int,
        key(
            "Limit of a message's body",
            "a callback carries it whole; the store takes 1 MiB including the envelope",
            "bytes",
            ge=1,
            le=1_000_000,
        ),
    ] = 262_144
    delay_days_max: Annotated[int, key("Longest delay", "ten years", "days", ge=1, le=3_653)] = 3_653


class CenterOptions(FaceOptions, frozen=True):
    """Owns the schedule: due times, claims, and results."""

    dir: Annotated[str, key("Folder of the schedule; one process at a time", "empty: `messages` in `instance.dir`")] = (
        ""
    )
    schedule: Annotated[
        str,
        key(
            "URL of a schedule in Redis: `redis://USER@HOST:PORT/DB`, `rediss://…`, `redis+sentinel://HOST:PORT,…/MASTER`, "
            "`redis+cluster://HOST:PORT,…`; centers on other machines wait to take it over",
            "empty: the schedule is in `dir`",
        ),
    ] = ""
    schedule_password_file: Annotated[str, key("File with the password of the user of that Redis, one line", "")] = ""
    log: Annotated[
        str,
        key(
            "URL of a log before the schedule, in Kafka: `kafka://HOST:PORT,HOST:PORT/PREFIX`; it has everything that was "
            "answered, and a schedule that is lost or older is rebuilt from it",
            "empty: none; the schedule in `dir` has its own",
            pattern=rf"^(|{URL})$",
        ),
    ] = ""
    log_replicas: Annotated[
        int,
        key(
            "Number of copies of that log, if its topic does not exist yet",
            "a single server can have only one",
            "",
            ge=1,
            le=16,
        ),
    ] = 1
    near_s: Annotated[
        int,
        key("Messages due within this time are kept in memory", "firing does not wait for a file", "s", ge=1, le=540),
    ] = 60
    history_hours: Annotated[
        int,
        key(
            "Time for which an ended message is known, so that its id is not accepted again",
            "longer than producers retry",
            "hours",
            ge=1,
            le=24 * 365,
        ),
    ] = 24
    ahead_hours: Annotated[
        int,
        key(
            "Time for which a cancel or a postponement waits for its message",
            "longer than a producer's own queue",
            "hours",
            ge=1,
            le=720,
        ),
    ] = 24
    dead_days: Annotated[
        int,
        key(
            "Time for which dead letters are kept; later they are dropped and counted",
            "a month to look at them",
            "days",
            ge=1,
            le=3_650,
        ),
    ] = 30
    overdue_rate: Annotated[
        int,
        key(
            "Limit of late messages per second that are fired after an outage, the oldest first",
            "targets are not flooded by the backlog",
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
            "Networks that callbacks may reach besides public addresses, separated by commas, for example "
            "`10.1.0.0/16`",
            "a callback to a private address is refused after its name is resolved; `muster up` allows loopback",
        ),
    ] = ""
    kafka: Annotated[
        str,
        key(
            "URL of Kafka for targets `kafka:TOPIC`: `kafka://HOST:PORT,HOST:PORT`",
            "empty: such targets are refused",
            pattern=r"^(|kafka://[^/@,: ]+:\d+(?:,[^/@,: ]+:\d+)*)$",
        ),
    ] = ""
    ca_file: Annotated[
        str, key("File of authorities that may certify targets, besides the public ones (PEM)", "empty: none")
    ] = ""
    tls_cert_file: Annotated[
        str,
        key(
            "File of the certificate for targets that request one, followed by those that signed it (PEM)",
            "empty: none",
        ),
    ] = ""
    tls_key_file: Annotated[str, key("File of that certificate's private key (PEM)", "")] = ""
    concurrency: Annotated[
        int,
        key(
            "Limit of concurrent callbacks of one topic to one URL; a server gets four times as many over all its URLs",
            "a slow target delays only itself",
            "calls",
            ge=1,
            le=10_000,
        ),
    ] = 64
    rate: Annotated[
        int, key("Limit of callbacks per second to one server; 0: no limit", "", "1/s", ge=0, le=1_000_000)
    ] = 0
    in_flight_max: Annotated[
        int, key("Limit of concurrent callbacks to all targets", "a socket each", "calls", ge=1, le=65_536)
    ] = 4_096
    held_max: Annotated[
        int,
        key(
            "Limit of one topic's messages that a worker holds",
            "enough for 10,000 per second; held messages are under a claim",
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
    topics_max: Annotated[
        int, key("Limit of topics", "every node keeps all topics in memory", "topics", ge=1, le=100_000)
    ] = 10_000
