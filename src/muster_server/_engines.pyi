from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, NotRequired, TypedDict, final, type_check_only

__all__ = [
    "RIGHTS",
    "SHARED_USER",
    "BrokerEngine",
    "CallbackClient",
    "ClaimLedger",
    "EdgeEngine",
    "FiringClock",
    "FiringEngine",
    "GatewayEngine",
    "Grant",
    "Journal",
    "LikesEngine",
    "LoadEngine",
    "Mailboxes",
    "OnlineProxyEngine",
    "OnlineWriterEngine",
    "PresenceAccess",
    "PresenceGatewayEngine",
    "PresenceLookup",
    "PresenceTable",
    "PresenceWriter",
    "ProxyEngine",
    "Recipients",
    "RetryPlan",
    "RouterEngine",
    "ScheduleKeeper",
    "Undelivered",
    "UnicastEngine",
    "WorkerDispatch",
    "assign_workers",
    "check_log",
    "dying_results",
    "key_proves",
    "message_numbers",
    "presence_ask",
    "presence_bucket",
    "presence_full_ask",
    "presence_record",
    "presence_split",
    "public_key",
    "room_owners",
    "salvage_schedule",
    "stored_change",
    "stored_claim",
    "stored_inserts",
    "stored_meet",
    "stored_new",
    "stored_put",
    "stored_put_ahead",
    "stored_read",
    "webhook_verify",
    "worker_weight",
]

SHARED_USER: int  # the user of the shared token
RIGHTS: list[str]  # the words for the rights in a room

def public_key(private: bytes) -> bytes: ...
def key_proves(public: bytes) -> bool: ...  # False: a key of small order, whose private half everybody has

# The broker that numbers each of these rooms; None where no broker of its partition runs. The map is as for `placement`.
def room_owners(
    names: list[str],
    name_key: bytes,
    nodes: list[tuple[int, str, str, int, int, str]],
    partitions: tuple[int, int],
    growth: tuple[int, int] = ...,
) -> list[int | None]: ...

# This node's private key, the list (node, role, public key), and "accepted", "offered" or "required".
_Allow = tuple[bytes, list[tuple[int, str, bytes]], str]
# Direction, peer (None: every client), loss, duplicate, corrupt, reorder, then hold, delay and jitter in ms; the
# mean length of a burst.
_Fault = (
    tuple[str, tuple[str, int] | None, float, float, float, float, int, int, int]
    | tuple[str, tuple[str, int] | None, float, float, float, float, int, int, int, float]
)

# The arguments of each node with links.
@type_check_only
class LinkOptions(TypedDict):
    node: int
    epoch: int
    link_bind: tuple[str, int]
    cluster_key: tuple[int, bytes]  # id and secret for new links
    cluster_other: NotRequired[tuple[int, bytes] | None]  # another one that is accepted
    cluster_allow: NotRequired[_Allow | None]  # the nodes that may link
    seed: int
    recv_buffer: int
    send_buffer: int
    payload_bytes: int
    faults: NotRequired[Sequence[_Fault] | None]

# Further ones of a node that clients connect to. Settings are JSON, with the names that they have in the configuration.
@type_check_only
class DoorOptions(TypedDict):
    bind: tuple[str, int]
    name_key: bytes
    server_key: NotRequired[bytes]  # of clients over UDP
    reset_secret: bytes

# The rights of one user, room by room: words for each pattern, which is a room's name, the beginning of one with "*", or
# "*". The most specific pattern decides. Raises `ValueError` for a text that is no pattern.
@final
class Grant:
    def __new__(cls, patterns: Sequence[tuple[str, Sequence[str]]]) -> Grant: ...
    def words(self, room: str) -> list[str]: ...  # raises `ValueError` unless it is a room's name
    def has_any(self, words: Sequence[str]) -> bool: ...  # in some room

# The queue between an engine and what hands on messages that no device has. Bounded: the engine drops and counts the others.
@final
class Undelivered:
    def __new__(cls) -> Undelivered: ...
    def take(self, most: int) -> list[tuple[int, int, int, str, bytes]]: ...  # sender, number, user, outcome, data

# The users whom one of these patterns matches: a number, its first digits with "*" behind them, or "*". Raises `ValueError`
# for a text that is no pattern.
@final
class Recipients:
    def __new__(cls, patterns: Sequence[str]) -> Recipients: ...
    def has(self, user: int) -> bool: ...
    def __bool__(self) -> bool: ...

@final
class Mailboxes:
    """What the engines of one process share: memory in place of sockets between them, and one descriptor.

    Engines have numbers here, from 0 to 63, as they join. Used in one loop.
    """

    def __new__(cls) -> Mailboxes: ...
    def fd(self) -> int:
        """Return the descriptor that is readable when an engine's is."""

    def mail(self) -> int:
        """Return a bit for each engine that others have given datagrams, which its next turn takes."""

    def leave(self, number: int) -> None:
        """Free an engine's number; the engine is closed next."""

    def linger(self, us: int) -> None:
        """From now on a round that begins within 500 us of the last one waits at most so long for what comes next; at first
        it does not."""

    def begin(self) -> int:
        """A round begins: return a bit for each engine whose descriptor is readable."""

    def wait(self) -> int:
        """Wait as long as the round may linger, and return a bit for each engine whose descriptor is readable then; 0: the
        time is over, or nothing has come for a millisecond or two."""

    def end(self) -> None:
        """The round has ended."""

# The methods of every role's engine. One turn receives a batch, runs timers and sends; it never blocks.
@type_check_only
class _Engine:
    def fd(self) -> int: ...
    def turn(self) -> int: ...  # bit 0: more work waits, call again soon; bit 1: events wait
    def join(self, mailboxes: Mailboxes) -> int: ...  # its number there; `OverflowError` beyond 64 at a time
    def linger(self, us: int) -> None: ...  # how long a brisk turn waits for the next datagram itself; at first 0
    def events(self) -> list[tuple[Any, ...]]: ...
    def take_late(self) -> float: ...  # the longest delay of a turn since the last call, in seconds
    def placement(
        self,
        epoch: int,
        nodes: list[tuple[int, str, str, int, int, str]],  # node, role, host, link port, partition, state
        partitions: tuple[int, int],  # of brokers, of routers
        growth: tuple[int, int] = ...,  # of both: 0 none, 1 the new partitions prepare, 2 they serve
        # Each further cluster: its brokers, their number of partitions, the step of their growth.
        beside: list[tuple[list[tuple[int, str, str, int, int, str]], int, int]] = ...,
    ) -> None: ...
    # Id and secret for new links; another one that is accepted too; the nodes that may link.
    def cluster_keys(
        self, key: tuple[int, bytes], other: tuple[int, bytes] | None = ..., allow: _Allow | None = ...
    ) -> None: ...
    def speak(self, lowest: int, highest: int) -> None: ...  # these versions of the protocol: as another release does
    # Uses those that may change while it runs, of all as at the start; gateways, edges and proxies. Raises `ValueError`.
    def settings(self, json: bytes) -> None: ...
    # Host, port, public key and weight of the servers that clients learn; gateways and proxies only.
    def servers(
        self, gateways: list[tuple[str, int, bytes, int]], proxies: list[tuple[str, int, bytes, int]]
    ) -> None: ...
    def settled(self) -> bool: ...  # everything that the last placement requires is done
    def counters(self) -> list[tuple[str, str, int]]: ...  # name, help, value
    def gauges(self) -> list[tuple[str, str, float]]: ...
    def status(self) -> dict[str, Any]: ...
    def addresses(self) -> list[tuple[str, int]]: ...  # as bound: the public socket first, where there is one
    def buffers(self) -> list[tuple[int, int]]: ...  # per socket: receive buffer asked for, effective
    def drain(self) -> None: ...  # refuse new work, finish accepted work
    def drained(self) -> bool: ...
    def stay(self) -> None: ...  # end a drain: accept clients again
    def cut_off(self) -> str | None: ...  # the partition to which this node has no link, in words; None: none
    def close(self) -> None: ...

@final
class EdgeEngine(_Engine):  # a gateway whose members come by WebSocket and speak the Centrifuge client protocol
    def __new__(
        cls,
        links: LinkOptions,
        door: DoorOptions,  # of the WebSocket listener, which has no server key
        # Calls of its `methods` are events ("call", question, user, grant, method, data).
        settings: bytes,
        tls: tuple[bytes, bytes] | None = None,  # certificates and key in PEM; None: not encrypted
        undelivered: Undelivered | None = ...,  # takes users' messages to users of whom no device has them
    ) -> EdgeEngine: ...
    # Answers an event ("authenticate", question, token) or ("subscribe", question, token, channel). The first has an empty
    # token where a client shows none. `user` None refuses with the code `denied`: "bad_credential", "not_allowed",
    # "not_ready", or "expired", after which the client brings another token.
    def answer(
        self,
        question_id: int,
        user: int | None,
        denied: str = ...,
        *,
        grant: Grant | None = ...,
        left_ms: int | None = ...,
        token: int = ...,
        device: bytes | None = ...,
        recipients: Recipients | None = ...,
        takes_over: bool = ...,
        rooms: list[str] = ...,  # to which its client is subscribed before its connect command is answered
    ) -> None: ...
    # Answers an event "call" with JSON; without data it failed: "internal" (the client tries again), "bad_request",
    # "not_allowed", "not_available" or "too_many_requests".
    def answer_call(self, question_id: int, data: bytes | None, failure: str = ...) -> None: ...
    def revoke(self, users: AbstractSet[int], tokens: AbstractSet[int]) -> None: ...
    def tls(self, certificates: bytes, key: bytes) -> None: ...  # for connections that come from now on
    def rooms(self, place: int, limit: int, text: str = "") -> tuple[list[dict[str, Any]], int | None]: ...
    def interest(
        self, from_: tuple[int, int], limit: int, /
    ) -> tuple[list[tuple[int, int]], tuple[int, int] | None]: ...
    def room(self, name: str) -> dict[str, Any] | None: ...

@final
class GatewayEngine(_Engine):
    def __new__(
        cls,
        links: LinkOptions,
        door: DoorOptions,
        settings: bytes,
        coalesce: bool = True,
    ) -> GatewayEngine: ...
    # `user` None refuses with the code `denied`: "bad_credential", "not_allowed" or "not_ready". `grant` None: every right.
    # The session ends after `left_ms`. `token`: the number by which it can be revoked.
    def answer(
        self,
        question_id: int,
        user: int | None,
        denied: str = ...,
        *,
        grant: Grant | None = ...,
        left_ms: int | None = ...,
        token: int = ...,
        device: bytes | None = ...,
        recipients: Recipients | None = ...,  # None: it may send to nobody
        takes_over: bool = ...,  # opens the session of a device that another one replaced a moment ago
    ) -> None: ...
    def revoke(self, users: AbstractSet[int], tokens: AbstractSet[int]) -> None: ...  # end these sessions
    def rooms(self, place: int, limit: int, text: str = "") -> tuple[list[dict[str, Any]], int | None]: ...
    def interest(
        self, from_: tuple[int, int], limit: int, /
    ) -> tuple[list[tuple[int, int]], tuple[int, int] | None]: ...  # (gateway, room id), and the next page
    def room(self, name: str) -> dict[str, Any] | None: ...

@final
class ProxyEngine(_Engine):
    def __new__(
        cls,
        links: LinkOptions,
        door: DoorOptions,
        settings: bytes,
        unicast: bool = False,  # take messages to users
        undelivered: Undelivered | None = ...,  # takes users' messages to users of whom no device has them
    ) -> ProxyEngine: ...
    # `user` None refuses with the code `denied`: "bad_credential", "not_allowed" or "not_ready". `grant` None: every right.
    # The session ends after `left_ms`. `token`: the number by which it can be revoked.
    def answer(
        self,
        question_id: int,
        user: int | None,
        denied: str = ...,
        *,
        grant: Grant | None = ...,
        left_ms: int | None = ...,
        token: int = ...,
        device: bytes | None = ...,
        recipients: Recipients | None = ...,  # None: it may send to nobody
        takes_over: bool = ...,  # opens the session of a device that another one replaced a moment ago
    ) -> None: ...
    def revoke(self, users: AbstractSet[int], tokens: AbstractSet[int]) -> None: ...  # end these sessions
    def rooms(self, _place: int, _limit: int, _text: str = "") -> tuple[list[dict[str, Any]], int | None]: ...
    def interest(
        self, _from: tuple[int, int], _limit: int
    ) -> tuple[list[tuple[int, int]], tuple[int, int] | None]: ...  # (gateway, room id), and the next page
    def room(self, _name: str) -> None: ...

@final
class BrokerEngine(_Engine):
    def __new__(cls, links: LinkOptions, name_key: bytes, settings: bytes) -> BrokerEngine: ...
    def answer(self, _question_id: int, _user: int | None, _denied: str = ...) -> None: ...
    def rooms(self, place: int, limit: int, text: str = "") -> tuple[list[dict[str, Any]], int | None]: ...
    def interest(
        self, from_: tuple[int, int], limit: int, /
    ) -> tuple[list[tuple[int, int]], tuple[int, int] | None]: ...  # (gateway, room id), and the next page
    def room(self, name: str) -> dict[str, Any] | None: ...

@final
class RouterEngine(_Engine):
    def __new__(cls, links: LinkOptions, settings: bytes) -> RouterEngine: ...
    def answer(self, _question_id: int, _user: int | None, _denied: str = ...) -> None: ...
    def keep_changes(self, max: int) -> None: ...  # most rooms whose changes wait for `take_changes`
    # Ended lives (gateway, epoch), then changes (gateway, epoch, room, check, version, present).
    def take_changes(self, limit: int) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int, int, bool]]]: ...
    def changes_kept(self) -> tuple[int, int]: ...  # waiting now, dropped so far for want of a place
    def hint(
        self, gateway: int, epoch: int, rooms: list[tuple[int, int, int]]
    ) -> int: ...  # `rooms`: (room, check, version); returns the number taken
    def rooms(self, _place: int, _limit: int, _text: str = "") -> tuple[list[dict[str, Any]], int | None]: ...
    def interest(
        self, from_: tuple[int, int], limit: int, /
    ) -> tuple[list[tuple[int, int]], tuple[int, int] | None]: ...  # (gateway, room id), and the next page
    def room(self, _name: str) -> None: ...

# Members, and publishers to their rooms, in the calling thread; it checks every delivery. Results are counts, and latencies
# as little-endian u32 microseconds.
@final
class LoadEngine:
    def __new__(
        cls,
        *,
        gateways: list[tuple[str, int, bytes]],
        proxies: list[tuple[str, int, bytes]],
        credential: bytes,
        members: int,
        rooms: list[str],
        seed: int,
        rooms_each: int = 1,
        recv_buffer: int = 0,
        gro: bool = True,
        faults: Sequence[_Fault] | None = None,
        commanding: bool = False,
        proxies_each: int | None = None,
        knocking: int = 128,
        members_each: int = 1,
        publishers: int = 1,
        learns: bool = False,
    ) -> LoadEngine: ...
    def connect(self, timeout: float) -> int: ...
    def saturate(
        self, size: int, seconds: float, patience: float = 10.0, window: int | None = None
    ) -> dict[str, Any]: ...
    def pace(
        self, size: int, rate: float, seconds: float, patience: float = 10.0, shed: bool = False
    ) -> dict[str, Any]: ...
    def schedule(self, size: int, rate: float, seconds: float, ramp: float) -> None: ...
    def stop(self) -> None: ...
    def advance(self, seconds: float) -> dict[str, Any]: ...
    def command(self, each: int, every: float, expires: float, size: int = 64, vacant: int = 0) -> dict[str, Any]: ...
    def listen(self, size: int, seconds: float) -> dict[str, int]: ...
    def idle(self, seconds: float) -> None: ...
    def redirect(
        self, gateways: list[tuple[str, int, bytes]], proxies: list[tuple[str, int, bytes]] | None = None
    ) -> None: ...
    def watch(self, at: float) -> None: ...
    def heard(self) -> tuple[bytes, bytes]: ...  # first, silence
    def joined(self) -> int: ...
    def close(self) -> None: ...
    def sessions_lost(self) -> int: ...
    def buffer(self) -> int: ...

# A message: id, version, due_at, expires_at (None: never), attempts, state, time. All times in ms since 1970.
# The state is "scheduled", "firing" (time: the end of the claim), "retry" (time: the next attempt), "done", "dead",
# "cancelled" or "expired".
_Message = tuple[int, int, int, int | None, int, str, int | None]
# Each begins with the number of its request:
#   "inserted", message · "before", message (it was there already) · "changed", message, step
#   "ahead", cancelled, at, by, bound (what waits for its message) · "found", message, topic, body · "unknown"
#   "fires", array · "settled", bytes · "packed", array, counts, whether to ask again · "stats", dict
#   "refused", reason, value: "unknown", "fired", "withdrawn", "expired", "early" (value: due), "held" (until),
#     "claim_lost", "version" (current), "not_dead", "bad_time"
#   "listed", see `find` · "busy" (too many listings)
#   "put", message · "rebuilding" (ask again)
#   "disk_full" (nothing changed) · "body_too_long" · "failed" (may have happened or not)
_Reply = tuple[Any, ...]

# Id, version, due_at, expires_at, attempts, state, its time, the worker that holds it (0: nobody).
_Fields = tuple[int, int, int, int | None, int, str, int | None, int]

# Id, and what was asked ahead of its message: whether cancelled, its due time (None: its own), ms beside it.
_Asked = tuple[int, bool, int | None, int, str]

# Reads the files of a schedule that no process has open: messages that are whole, ids of those whose body is lost,
# faults as (file, byte, text), the number of all faults. `into`: all whole messages are written there. OSError.
def salvage_schedule(
    folder: str, into: str | None = ..., *, segment_bytes: int, now_ms: int
) -> tuple[int, list[int], list[tuple[str, int, str]], int]: ...

# A durable schedule of messages in a thread of its own. A reply leaves after its change is durable.
# The caller bounds the requests that it has sent and that are not answered.
@final
class ScheduleKeeper:
    # Opens or makes the folder `path`. Without an epoch its only user: BlockingIOError if another has it open.
    # OSError if the files are damaged or fail.
    def __new__(
        cls,
        settings: bytes,  # as `core/messages` names them, in JSON
        *,
        path: str,
        epoch: int | None = ...,
        segment_bytes: int = ...,
    ) -> ScheduleKeeper: ...
    def fd(self) -> int: ...  # readable when replies wait
    # Number, id, topic, due_at, expires_at, body (at most 1 MiB).
    def insert(self, messages: Sequence[tuple[int, int, int, int, int | None, bytes]]) -> None: ...
    # Of an array of (id, topic, due_at, expires_at, body) in MessagePack. A "packed": an array of replies as of `insert`,
    # without numbers; how many are new by topic; whether some are to be asked again.
    def insert_packed(self, number: int, messages: bytes) -> None: ...
    # Of an array of results in MessagePack, as `Result` in `systems/messages/shapes.py`. A "settled": one byte for each.
    # d: delivered, r: retrying, b: buried, l: released, x: the claim is not the live one, n: tell it again later.
    def settle(self, number: int, results: bytes) -> None: ...
    # Number, id, verb, version, time. With a version expected, or None: "cancel", "due_at" (time), "later" and
    # "sooner" (to a time that is so, else refused with the time as "not_later", "not_sooner"), "due_by" (ms later),
    # "replay" (time), "drop". With the version of a claim: "deliver", "fail" (time of the next attempt, None: dead),
    # "release" (time).
    def change(self, changes: Sequence[tuple[int, int, str, int | None, int | None]]) -> None: ...
    # Number, and a message as another record knows it: put with its version if that is greater, else "before".
    def put(self, messages: Sequence[tuple[int, _Fields]]) -> None: ...
    # Number, and what was asked ahead of a message: "put", or "before" where the message is here.
    def put_ahead(self, asked: Sequence[tuple[int, _Asked]]) -> None: ...
    def get(self, messages: Sequence[tuple[int, int]]) -> None: ...  # number, id
    # The worker takes `credit` messages of the topic more. They come as "fires" with this number, in arrays in MessagePack
    # of `Fire` in `systems/messages/shapes.py`.
    def serve(self, number: int, topic: int, worker: int, lease_ms: int, attempts_max: int, credit: int) -> None: ...
    def leave(self, worker: int) -> None: ...  # credits of the worker are void; not answered
    # Topic (None: all), times of the next attempt, states ("scheduled", "firing", "done", "dead", "withdrawn"), messages
    # named at most. A "listed": (message, topic) of the earliest, times of all, whether there are more than counted.
    # `after`: the time and id of the last message of the page before.
    def find(
        self,
        number: int,
        topic: int | None,
        begin: int,
        end: int,
        states: Sequence[str],
        limit: int,
        after: tuple[int, int] | None = ...,
    ) -> None: ...
    # An "overdue": topic, messages that are due for a second and whose first attempt has no answer, when the oldest was due.
    def overdue(self, number: int) -> None: ...
    def stats(self, number: int) -> None: ...
    # Proves that files and index agree, beside all other work. A "scrubbed": messages, bodies, how many faults there are,
    # the first 100 in words; or "busy": one is on its way.
    def scrub(self, number: int) -> None: ...
    def take(self) -> list[_Reply]: ...  # OSError: the store failed, open it again
    def clock_steps(self) -> list[int]: ...  # ms that the wall clock was set by, since the last call
    def close(self) -> None: ...  # makes a checkpoint; blocks until it is made

# HTTP callbacks in a thread of their own.
@final
class CallbackClient:
    def __new__(
        cls,
        settings: bytes,  # as `core/callback` names them, in JSON
        *,
        roots: Sequence[bytes] = ...,  # certificates in DER, beside Mozilla's
    ) -> CallbackClient: ...
    def fd(self) -> int: ...  # readable when results wait
    # Number, webhook id, URL, content type, body, secrets ("whsec_…", two while one replaces the other), timeout in
    # seconds. Answers how many were taken, from the first on.
    def submit(self, calls: Sequence[tuple[int, str, str, str, bytes, list[str], float]]) -> int: ...
    # Number, outcome, status, detail, seconds until it may be tried again, seconds that it took:
    #   "delivered", status · "refused", status, begin of the body, Retry-After
    #   "failed": "bad_url", "unresolved", "forbidden_address", "connect", "tls", "timeout", "broken"
    #   "not_made", which is no attempt: "held", "busy", "stopping"
    def take(self) -> list[tuple[int, str, int | None, str | bytes, float | None, float]]: ...
    def close(self) -> None: ...  # cuts off the calls on their way

# The callbacks of a worker, in a thread of their own. Fires and results are arrays in MessagePack, of `Fire` and `Result` in
# `systems/messages/shapes.py`.
@final
class FiringEngine:
    def __new__(
        cls,
        settings: bytes,  # as for `CallbackClient`
        *,
        authorities: Sequence[bytes] = ...,  # certificates in DER, beside Mozilla's
        identity: tuple[Sequence[bytes], bytes] | None = ...,  # a client's certificates and its key, in DER
    ) -> FiringEngine: ...
    def fd(self) -> int: ...  # readable when there is something to collect
    # Number, callback, secrets, timeout in seconds, retries after these ms, jitter in thousandths, the longest pause by
    # `Retry-After` in seconds.
    def topics(self, topics: Sequence[tuple[int, str, Sequence[str], float, Sequence[int], int, float]]) -> None: ...
    # Calls back. Those that it does not make: not due, of an unknown topic, to no address, malformed. None: it makes all.
    def take(self, now: int, fires: bytes) -> bytes | None: ...
    def collect(self, now: int, random: int) -> None: ...  # takes answers in; OSError: the thread ended
    def tell(self, results: bytes) -> None: ...  # adds results
    def piece(self, max: int) -> bytes: ...  # the oldest results, which stay until they are told
    def told(self, taken: bytes) -> None: ...  # a byte for each of the last piece; those with 0 stay
    def waiting(self) -> int: ...  # results
    def under_way(self) -> int: ...  # callbacks
    # Targets that get nothing now, or only trials: topic (None: the whole origin), URL, why, seconds left.
    def held(self) -> list[tuple[int | None, str, Literal["unreachable", "failing", "paused"], float]]: ...
    def made(self) -> dict[str, int]: ...  # delivered, refused, failed, not_made, out_of_time
    def close(self) -> None: ...  # cuts off the calls on their way

# The claims of one worker.
@final
class ClaimLedger:
    def __new__(cls) -> ClaimLedger: ...
    def __len__(self) -> int: ...
    def held(self, topic: int) -> int: ...
    # Of an array of fires, by topic: fires, and first attempts that are at least so much overdue.
    def begin(self, fires: bytes, now: int, overdue_ms: int) -> list[tuple[int, int, int]]: ...
    # Of an array of results and the bytes that the schedule said of them, by topic: attempts, ms that they took, fired,
    # retries, dead, first attempts by lateness, whether claims ended. A released claim lasts until `grace_ms` before it
    # is due again.
    def settle(
        self, results: bytes, said: bytes, now: int, grace_ms: int, bounds_ms: Sequence[int]
    ) -> list[tuple[int, int, float, int, int, int, list[int], bool]]: ...
    def sweep(self, now: int) -> list[int]: ...  # forgets claims that ran out; their topics
    def drain(self) -> list[tuple[int, int]]: ...  # forgets all: message, claim

# The numbers of a topic's messages in the schedule, by their ids: keyed BLAKE2b.
def message_numbers(key: bytes, topic: int, ids: Sequence[str]) -> list[int]: ...

# Of an array of results, those by which a message dies: place, number, outcome, status, answer.
def dying_results(results: bytes) -> list[tuple[int, int, str, int | None, bytes]]: ...

# The same messages one at a time, for a store that keeps 64 bytes for each id and sets them if it has those expected.
# OSError for damaged bytes. A change gives the bytes to set (None: none) and the reply.
def stored_new(id: int, topic: int, due_at: int, expires_at: int | None) -> bytes | None: ...  # None: a bad time

# An array of new messages in groups of one topic and `at_once` at most: topic, when the first is due, places, and for each
# its entry with the body behind it. Then an array of the replies as they are if none is known. ValueError: another shape.
def stored_inserts(
    messages: bytes, body_bytes_max: int, at_once: int
) -> tuple[list[tuple[int, int, list[int], list[bytes]]], bytes]: ...
def stored_meet(there: bytes, new: bytes) -> bytes: ...  # the message after what was asked ahead of it

# Id, verb, version, time as in `ScheduleKeeper.change`; what is asked ahead of its message is kept for `ahead_ms`.
def stored_change(
    there: bytes | None, now: int, asked: tuple[int, str, int | None, int | None], ahead_ms: int
) -> tuple[bytes | None, _Reply]: ...
def stored_claim(there: bytes, now: int, worker: int, until: int, attempts_max: int) -> tuple[bytes | None, _Reply]: ...
def stored_put(there: bytes, fields: _Fields) -> bytes | None: ...  # None: it is as new
def stored_put_ahead(
    there: bytes | None, now: int, asked: _Asked, ahead_ms: int
) -> bytes | None: ...  # None: it is here

# The message (None: asked ahead of it), topic, when to look at it again (None: it ended), the worker that holds it.
def stored_read(there: bytes) -> tuple[tuple[Any, ...] | None, int, int | None, int]: ...

# A wall clock (ms) that no step makes run ahead of the monotonic one: time to fire by, and a step when it is noticed.
@final
class FiringClock:
    def __new__(cls, wall: int, monotonic: int) -> FiringClock: ...
    def read(self, wall: int, monotonic: int) -> tuple[int, int | None]: ...

# Whether a received callback is signed by `secret`, at most 300 s from `now`.
def webhook_verify(secret: str, id: str, time: int, body: bytes, signature: str, now: int) -> bool: ...

@final
class RetryPlan:
    def __new__(cls, intervals_ms: Sequence[int], *, jitter: int) -> RetryPlan: ...  # in thousandths
    def attempts_max(self) -> int: ...
    # The time of the next attempt after so many failed; None: no more.
    def next(self, attempts: int, now: int, retry_after_ms: int | None, random: int) -> int | None: ...

_Worker = tuple[int, int, int]  # incarnation, weight (0 to 1,000), held messages

@final
class WorkerDispatch:
    # "random", "round-robin", "weighted-round-robin", "weighted-random" or "least-loaded".
    def __new__(cls, policy: str) -> WorkerDispatch: ...
    def choose(self, among: Sequence[_Worker], random: int) -> int | None: ...  # 64 random bits; None: no weight

# "random" or "least-loaded"; one random number of 64 bits for each worker.
def assign_workers(how: str, among: Sequence[_Worker], count: int, random: Sequence[int]) -> list[int]: ...
def worker_weight(held: float, memory: float, cpu: float) -> int: ...  # of the parts in use, 0 to 1

# Keys, fields and rankings are bytes; times are milliseconds since 1970. `feed`, `take` and `durable` read no clock.
@final
class LikesEngine:
    def __new__(
        cls,
        *,
        folder: str | None,  # of its log; None: the owner of the engine has the log
        segment_bytes: int = ...,  # at least 8 MiB
        epoch: int | None = ...,  # of an owner that a registry appointed; None: the only process that uses the folder
        snapshot: bytes | None = ...,
        items_by_user: bool = ...,
        passwords: list[tuple[str, str]] = ...,  # (user, password); none: every client is let in
        one_of: list[list[str]] = ...,  # groups of kinds: a like of one takes those of the others back
        begin: int = ...,  # the offset at which a log without a record goes on
        after: int = ...,  # an epoch that the owner's is to be above
    ) -> (
        LikesEngine
    ): ...  # OSError: locked, fenced, damaged, full; LookupError: the log lacks what follows the snapshot;
    # ValueError: the snapshot is damaged
    def skipped(self) -> int: ...  # offsets that the log passed over to go on at `begin`
    def fileno(self) -> int: ...  # readable when `durable` is to be called
    def close(self) -> None: ...
    # Listens for clients; the bound address. `tls`: certificates and their key, in PEM. Raises `OSError`, `ValueError`.
    def listen(
        self, bind: tuple[str, int], connections_max: int, tls: tuple[bytes, bytes] | None
    ) -> tuple[str, int]: ...
    def clients_fileno(self) -> int: ...  # readable when `turn` is to be called
    def turn(self, now_ms: int) -> None: ...
    def stop_listening(self) -> None: ...
    def hold(self) -> None: ...  # accepts no more bytes until `go_on`
    def go_on(self) -> None: ...
    def close_clients(self, now_ms: int) -> None: ...
    def clients(self) -> tuple[int, int, int]: ...  # connected, accepted, refused
    def connect(self) -> int: ...  # a connection without a socket
    def feed(self, connection: int, data: bytes, now_ms: int) -> bool: ...  # takes no more until `take` says so
    def pending(self) -> bool: ...  # changes wait to be durable
    def refusal(self) -> str | None: ...  # why no change is taken any more
    def epoch(self) -> int: ...
    def offset(self) -> int: ...
    def take(
        self, connection: int, now_ms: int
    ) -> tuple[bytes, bool, bool]: ...  # replies, to be closed, not to be read
    def durable(self, now_ms: int) -> bool: ...
    # Of an engine whose owner has the log: it makes each batch durable and reports that, before it asks for the next.
    def begin_batch(self) -> tuple[bytes, int] | None: ...  # each record behind its length (4 bytes); their number
    def batch_is_durable(self, first: int, now_ms: int) -> None: ...
    def batch_failed(self, text: str, for_good: bool, now_ms: int) -> None: ...  # text: "CODE words"
    def replay(self, first: int, payload: bytes) -> None: ...
    def owns(self) -> bool: ...  # no later owner has claimed the log in the folder; raises OSError
    def forget(self) -> None: ...  # drop everything, once the log is closed and nothing is pending
    def set_passwords(self, passwords: list[tuple[str, str]]) -> None: ...  # of later clients
    # Questions, and changes if `changes_too`, get this reply; None: they are served again.
    def suspend(self, text: str | None, changes_too: bool) -> None: ...
    # (id, host, port, [(first slot, last slot)]); `door`: this one serves no item, whatever slots it stands for
    def set_cluster(
        self, nodes: list[tuple[str, str, int, list[tuple[int, int]]]], me: int, epoch: int, *, door: bool = ...
    ) -> None: ...
    def count(self, key: bytes) -> int: ...
    def likes(self, key: bytes, user: int) -> bool: ...
    # count, whether the viewer likes it (None: no viewer), newest likers (at most 10)
    def feed_page(
        self, keys: list[bytes], viewer: int | None, newest: int
    ) -> list[tuple[int, bool | None, list[int]]]: ...
    def modification(self, key: bytes) -> int: ...
    def newest(self, key: bytes, count: int) -> list[int]: ...
    def likers(self, key: bytes, start: int, count: int) -> list[int]: ...
    def both(self, keys: list[bytes]) -> list[int]: ...
    def items(self, user: int, start: int, count: int) -> list[bytes]: ...
    def liked(
        self, user: int, start: int, count: int
    ) -> list[tuple[bytes, int | None]]: ...  # items with the second of each like since 1970
    def fields(self, key: bytes) -> list[bytes]: ...
    def trends(self, key: bytes, now_ms: int) -> list[float]: ...  # in the order of `windows`
    @staticmethod
    def windows() -> list[tuple[str, int]]: ...  # name, half-life in ms
    def rank(self, ranking: bytes, key: bytes) -> int | None: ...
    def ranking_len(self, ranking: bytes) -> int: ...
    def page(self, ranking: bytes, start: int, count: int, now_ms: int) -> list[tuple[bytes, float]]: ...
    # (key, modification, (count, dense ids in the portable roaring format) or None where it was deleted)
    def rows(
        self, cursor: int, count: int, bytes: int
    ) -> tuple[int | None, list[tuple[bytes, int, tuple[int, bytes] | None]]]: ...
    # What was written behind comes back: users first, in the order of their dense ids. ValueError: a damaged row.
    def take_users(self, users: list[tuple[int, int | None]]) -> None: ...
    def take_row(self, key: bytes, modification: int, likes: tuple[int, bytes] | None) -> bool: ...  # False: not newer
    # Records of a log that may be damaged; below `rows_end` leaderboards alone, which no row has. OSError.
    def apply_log(self, folder: str, across_gaps: bool, rows_end: int = ...) -> int: ...
    def skip_to(self, offset: int) -> None: ...  # the next record has this offset, if that is higher
    def written(self, key: bytes, modification: int) -> None: ...
    def written_below(self, offset: int) -> None: ...
    def dirty(self) -> int: ...
    def watch(self) -> None: ...
    # items that changed with their counts, None where they were deleted; whether some were lost
    def changed(self, count: int) -> tuple[list[tuple[bytes, int | None]], bool]: ...
    def scan(self, cursor: int, count: int) -> tuple[int, list[tuple[bytes, int]]]: ...  # 0 at the end
    def users(self, start: int, count: int) -> list[tuple[int, int | None]]: ...  # dense id, user; None: erased
    def snapshot(self) -> bytes: ...
    def begin_snapshot(self) -> int: ...  # its offset
    def snapshot_part(self, bytes: int) -> bytes: ...  # empty at the end
    def trim(self, offset: int) -> None: ...
    def erasures(self) -> list[tuple[int, str, int, int | None, int]]: ...  # job, phase, slots, dense id, offset
    def refuses(self, user: int) -> bool: ...
    def traces(self, job: int, cursor: int, count: int) -> tuple[int, int]: ...  # next, found
    def erase_step(self, job: int, at_ms: int, drop_id: bool) -> bool: ...
    def erasure_done(self, job: int, at_ms: int, snapshots: int, segments: int) -> bool: ...
    def begin_clean(self) -> None: ...
    def clean(self) -> int | None: ...
    def reuse_again(self) -> None: ...
    def log_files(self) -> tuple[int, int]: ...  # start, segments
    def figures(self) -> dict[str, Any]: ...

# Reads a log that may be damaged, beside its owner or without one: the offset of its first record, the one behind the
# last, what is known to have been acknowledged, and faults: file, byte, text, the first record lost and the one behind
# the last.
def check_log(folder: str) -> tuple[int, int, int | None, list[tuple[str, int, str, int, int]]]: ...

# A durable log of records in a folder, with a thread of its own. Its errors are OSError(kind, text); kinds: "locked",
# "fenced", "full", "too_large", "damaged", "failed", "refused", "trimmed", "beyond". A payload has each record behind its
# length (4 bytes, little-endian), at most 4 MiB together. Only `read` and `close` block, and may run in another thread.
@final
class Journal:
    # `epoch` is that of an owner whom a registry appointed; None: the only process that uses the folder.
    # `begin`: the offset at which a log without a record goes on; `after`: an epoch that a sole owner's is to be above.
    def __new__(
        cls, *, folder: str, segment_bytes: int, epoch: int | None = ..., begin: int = ..., after: int = ...
    ) -> Journal: ...
    def fileno(self) -> int: ...  # readable when `take` has something
    @property
    def epoch(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    def append(self, payload: bytes) -> None: ...
    # Offset of the first record, the one behind the last, and (kind, text) of an error, in the order of `append`.
    def take(self) -> list[tuple[int, int, tuple[str, str] | None]]: ...
    def read(self, offset: int) -> tuple[int, int, bytes]: ...  # offset, number of records, payload of up to 5 MiB
    def trim(self, offset: int) -> None: ...  # whole segments
    def close(self) -> None: ...

# Presence. Times are microseconds of a monotonic clock, `wall_ms` and `at_ms` milliseconds since 1970. A state is "online"
# or the reason of being offline: "closed", "lost", "drained", "replaced", "kicked". ValueError: a device, frame, shard or
# reason that is none. `settings`: as `core/presence` names them, in JSON.
_Ranges = list[tuple[int, int]]  # first and last, both included

@final
class PresenceAccess:
    def __new__(cls, settings: bytes, *, ap: int, epoch: int, now: int, version: int = ...) -> PresenceAccess: ...
    # A linked writer's site, shards and shard; None: its link is down.
    def writer(self, node: int, place: tuple[int, int, int] | None) -> None: ...
    # Older sessions to close, with the reason. OverflowError: too many devices of the user.
    def barred(self, now: int, user: int, device_name: str, takes_over: bool) -> int | None: ...  # us to wait
    def online(self, now: int, wall_ms: int, user: int, device_name: str, session: int) -> list[tuple[int, str]]: ...
    def offline(self, now: int, wall_ms: int, user: int, device_name: str, session: int, why: str) -> None: ...
    def drain(self, now: int, wall_ms: int) -> None: ...
    def feed(self, now: int, writer: int, bytes: bytes) -> list[tuple[int, str]]: ...  # sessions to close
    def expire(self, now: int) -> None: ...
    def deadline(self) -> int | None: ...
    def take(self) -> list[tuple[int | None, bytes]]: ...  # a writer's number, or None: to two online proxies
    def version(self) -> int: ...
    def devices(self) -> list[tuple[int, str]]: ...

@final
class PresenceLookup:
    def __new__(cls, users: list[int], shards: int) -> PresenceLookup: ...
    def shards(self) -> list[int]: ...  # those that have some of the users
    def question(self, shard: int, buckets: int) -> tuple[bytes, bytes]: ...  # its users, and the bucket of each
    # The site's answer in MessagePack; of each shard its number, its store's answer or its copy, clock and keepalive in ms.
    def found(
        self, site: int, parts: Sequence[tuple[int, bytes | PresenceTable, int, int]], lost: bool = ...
    ) -> bytes: ...

@final
class PresenceTable:
    def __new__(cls, *, shards: int, buckets: int, seed: int) -> PresenceTable: ...
    def begin(self, batches: int) -> None: ...  # loading starts, from a store that has at least this number
    def page(self, bytes: bytes) -> int: ...  # records; returns the number of users
    def seen_page(self, bytes: bytes) -> None: ...  # last-seen times
    def loaded(self) -> None: ...
    def batch(self, number: int, users: bytes, gone: bytes, at_s: int) -> bool: ...  # False: one before it is missing
    @property
    def is_whole(self) -> bool: ...
    @property
    def batches(self) -> int: ...
    @property
    def users(self) -> int: ...
    @property
    def bytes(self) -> int: ...

@final
class PresenceWriter:
    def __new__(cls, settings: bytes, *, shards: int, index: int, epoch: int) -> PresenceWriter: ...
    def restore_applied(self, now: int, ap: int, epoch: int, version: int) -> None: ...
    def restore_user(self, now: int, user: int, record: bytes) -> bool: ...  # False: the record is to be deleted
    def expect(self, now: int, aps: list[int]) -> None: ...
    def remove(self, now: int, aps: list[int]) -> None: ...
    def rewrite(self) -> None: ...
    # For each frame "applied", "duplicate", "held", or the reason of its refusal.
    def feed(self, now: int, bytes: bytes) -> list[str]: ...
    def due(self, now: int) -> list[tuple[int, int, _Ranges]]: ...  # gateway, epoch, versions
    def asked(self, ap: int, ranges: _Ranges, transaction: int) -> None: ...
    def waits(self, ap: int, transaction: int) -> int: ...
    def release(self, ap: int, transaction: int) -> None: ...
    # Gateway, why, the transaction that asks, chunks that are missing.
    def fulls(self) -> list[tuple[int, str, int | None, _Ranges, int | None]]: ...
    def full_asked(self, ap: int, transaction: int) -> None: ...
    def expire(self, now: int) -> None: ...
    def stalled(self, now: int) -> None: ...
    def supersedes(self, now: int) -> list[tuple[int, bytes]]: ...  # frames that end sessions, each with its gateway
    def deadline(self, now: int) -> int | None: ...
    # Users with record (empty: delete) and changes (gateway, epoch, version, index, device, state, at_ms); gateways with
    # epoch and version (None: delete). The same until `written`.
    def batch(
        self, users_max: int
    ) -> (
        tuple[
            list[tuple[int, bytes, list[tuple[int, int, int, int, str, str, int]]]],
            list[tuple[int, int, int | None]],
        ]
        | None
    ): ...
    def written(self) -> None: ...
    def is_written(self) -> bool: ...
    def standing(self, now: int) -> tuple[str, int | None]: ...  # "in_sync", "starting", "deaf", ("behind", gateway)
    def online(self) -> list[tuple[int, str, int]]: ...
    # Gateway, epoch, whether it is followed, highest complete version, highest seen, missing versions.
    def sources(self) -> list[tuple[int, int, bool, int, int, int]]: ...
    def counters(self) -> dict[str, int]: ...

# An online proxy's node, as `muster_server.plane.engine.Engine`.
@final
class OnlineProxyEngine(_Engine):
    def __new__(cls, links: LinkOptions, site: int) -> OnlineProxyEngine: ...
    def answer(self, _question_id: int, _user: int | None, _denied: str = ...) -> None: ...

# A unicast service's node. It asks where users are by events ("route", user).
@final
class UnicastEngine(_Engine):
    def __new__(cls, links: LinkOptions, site: int) -> UnicastEngine: ...
    def answer(self, _question_id: int, _user: int | None, _denied: str = ...) -> None: ...
    def readers(self, known: bool) -> None: ...
    # Of each device its gateway, its name and whether it is online; None: no reader could say.
    def routed(self, found: list[tuple[int, list[tuple[int, str, bool]] | None]]) -> None: ...

# An online writer's node, as `muster_server.plane.engine.Engine`, and what its keeper does with it.
@final
class OnlineWriterEngine(_Engine):
    def __new__(
        cls, links: LinkOptions, settings: bytes, *, site: int, shards: int, shard: int
    ) -> OnlineWriterEngine: ...
    def answer(self, _question_id: int, _user: int | None, _denied: str = ...) -> None: ...
    def now(self) -> int: ...
    def restore_applied(self, ap: int, epoch: int, version: int) -> None: ...
    def restore_users(self, bytes: bytes) -> tuple[int, list[int]]: ...
    def restore_told(
        self, user: int, device_name: str, of: tuple[int, int, int, int], at_ms: int, online: bool
    ) -> None: ...
    def open(self) -> None: ...
    def rewrite(self) -> None: ...
    def due(self, now: int) -> list[tuple[int, int, _Ranges]]: ...
    def is_whole(self) -> bool: ...
    def asked(self, ap: int, ranges: _Ranges, transaction: int) -> None: ...
    def waits(self, ap: int, transaction: int) -> int: ...
    def release(self, ap: int, transaction: int) -> None: ...
    def fulls(self) -> list[tuple[int, str, int | None, _Ranges, int | None]]: ...
    def full_asked(self, ap: int, transaction: int) -> None: ...
    def send(self, node: int, frame: bytes) -> None: ...
    # Users, changes, and what the store's script takes: users, those that went, vector, changes. The same until `written`.
    def batch(self, users_max: int, buckets: int) -> tuple[int, int, bytes, bytes, bytes, bytes] | None: ...
    def written(self) -> None: ...
    def is_written(self) -> bool: ...
    def standing(self) -> tuple[str, int | None]: ...
    def sources(self) -> list[tuple[int, int, bool, int, int, int]]: ...
    def online_len(self) -> int: ...

# A gateway without sessions, for benches and tests of writers.
@final
class PresenceGatewayEngine(_Engine):
    def __new__(cls, links: LinkOptions, settings: bytes, *, version: int = ...) -> PresenceGatewayEngine: ...
    def answer(self, _question_id: int, _user: int | None, _denied: str = ...) -> None: ...
    def online(self, wall_ms: int, users: list[int], device_name: str, session: int) -> None: ...
    def offline(self, wall_ms: int, users: list[int], device_name: str, session: int, why: str) -> None: ...
    def drain_devices(self, wall_ms: int) -> None: ...
    def devices_len(self) -> int: ...

# Site, shards, shard and a frame. `sites`: number of writers of each.
def presence_split(map: int, sites: list[tuple[int, int]], bytes: bytes) -> list[tuple[int, int, int, bytes]]: ...
def presence_ask(transaction: int, shard_of: tuple[int, int], origin: tuple[int, int], ranges: _Ranges) -> bytes: ...
def presence_full_ask(transaction: int, shard_of: tuple[int, int], ap: int, chunks: _Ranges) -> bytes: ...
def presence_record(bytes: bytes) -> list[tuple[int, int, str, int, int, str, int]]: ...
def presence_bucket(user: int, shards: int, buckets: int) -> int: ...
