"""The section `[http]` of the configuration. Owns the keys and their bounds; `server.py` puts them into effect."""

from typing import Annotated, Final

from muster_server.plane.options import FaceOptions, key

RELOADS: Final = (
    "hosts",
    "cors_origins",
    "body_bytes_max",
    "batch_max",
    "request_s_max",
    "requests_rate",
    "messages_rate",
    "rooms_max",
    "room_idle_s",
    "streams_max",
    "heartbeat_s",
    "stall_s",
)
"""Keys of `[http]` that a running node takes by SIGHUP: those that do not size existing parts."""


class HttpOptions(FaceOptions, frozen=True):
    """The HTTP face: rooms for every language that has an HTTP client. Needs the extra `http` of `muster-server`."""

    bind: Annotated[
        str,
        key(
            "TCP address, `host:port`, an IPv6 host in brackets",
            "loopback: it speaks no TLS, a reverse proxy in front does; port 0: a free one is chosen",
        ),
    ] = "127.0.0.1:0"
    keys_file: Annotated[
        str,
        key(
            "File with the API keys, which `muster key` writes; a change is in force within two seconds",
            "empty: `http-keys.json` in `instance.dir`",
        ),
    ] = ""
    hosts: Annotated[
        tuple[str, ...],
        key(
            "Names that a `Host` header may have, `*.example.com` for all below; addresses and `localhost` always may",
            "a page of another site that points its name here gets no answer",
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        key("Origins whose pages may call from a browser, as `https://example.com`", "empty: none, CORS is off"),
    ] = ()
    docs: Annotated[
        bool, key("Serve the API's page at `/docs` and its description at `/openapi.json`", "neither tells a secret")
    ] = True
    body_bytes_max: Annotated[
        int,
        key("Largest body of a request", "a batch of 1,000 messages of 1 KiB", "bytes", ge=1_024, le=64 << 20),
    ] = 1 << 20
    head_bytes_max: Annotated[
        int, key("Largest head of a request: its line and its headers", "as usual", "bytes", ge=1_024, le=1 << 20)
    ] = 16_384
    batch_max: Annotated[
        int, key("Messages of one request", "each has an answer of its own", "messages", ge=1, le=10_000)
    ] = 1_000
    request_s_max: Annotated[
        float,
        key(
            "Longest time from the head of a request to the end of its answer", "streams have none", "s", ge=0.1, le=600
        ),
    ] = 30.0
    head_s_max: Annotated[
        float,
        key(
            "Longest wait for the head of a request; also how long an idle connection is kept", "", "s", ge=0.1, le=600
        ),
    ] = 15.0
    connections_max: Annotated[
        int, key("Connections at once; more are closed at once", "a descriptor each", "connections", ge=1, le=1 << 20)
    ] = 10_000
    requests_rate: Annotated[
        int,
        key(
            "Requests of one key, or of one user; twice as many at once after a pause",
            "one key cannot take the whole process",
            "1/s",
            ge=1,
            le=1_000_000,
        ),
    ] = 500
    messages_rate: Annotated[
        int,
        key(
            "Messages and commands that one key or user publishes; twice as many at once after a pause",
            "a batch counts each of its messages",
            "1/s",
            ge=1,
            le=10_000_000,
        ),
    ] = 10_000
    idempotency_s: Annotated[
        int,
        key("How long the answer to an `Idempotency-Key` is kept", "longer than clients retry", "s", ge=1, le=86_400),
    ] = 600
    idempotency_max: Annotated[
        int,
        key(
            "Answers kept at most; the oldest goes first", "about 100 bytes each, a batch's 50 KB", "", ge=1, le=1 << 20
        ),
    ] = 10_000
    sessions_max: Annotated[
        int,
        key(
            "Users at once, by their tokens, each with sessions of its own at a gateway and a proxy",
            "two sockets each",
            "users",
            ge=1,
            le=100_000,
        ),
    ] = 1_000
    session_idle_s: Annotated[
        float,
        key("A user's sessions are closed after this time without a request", "a poll a minute", "s", ge=1, le=86_400),
    ] = 90.0
    rooms_max: Annotated[
        int,
        key(
            "Rooms that are read at once, each with one membership however many streams read it",
            "with `room_bytes_max` it bounds the memory: 1 GiB",
            "rooms",
            ge=1,
            le=100_000,
        ),
    ] = 1_024
    room_bytes_max: Annotated[
        int,
        key(
            "Recent messages of a room that is read; a stream that falls further behind gets a gap",
            "seconds of a busy room",
            "bytes",
            ge=65_536,
            le=1 << 30,
        ),
    ] = 1 << 20
    history_max: Annotated[
        int,
        key(
            "Recent messages of a room that can be asked for, or gone on from; no more than `gateway.history_max`",
            "that of gateways",
            "messages",
            ge=1,
            le=65_536,
        ),
    ] = 1_000
    room_idle_s: Annotated[
        float,
        key("A room without readers is left after this", "a client that comes back", "s", ge=0.1, le=600),
    ] = 10.0
    streams_max: Annotated[int, key("Event streams at once", "a connection each", "streams", ge=1, le=1 << 20)] = 8_000
    heartbeat_s: Annotated[
        float, key("Time between comments on a quiet stream", "proxies cut after 30 or 60 s", "s", ge=0.1, le=600)
    ] = 15.0
    stall_s: Annotated[
        float, key("A stream is cut if its client takes nothing for this time", "two heartbeats", "s", ge=0.1, le=600)
    ] = 30.0
    drain_s: Annotated[
        float,
        key(
            "Running requests may take this long to finish when the process ends",
            "`muster up` waits 12 s with a registry and 2 s without; systemd and Kubernetes as they are told",
            "s",
            ge=0,
            le=600,
        ),
    ] = 10.0
