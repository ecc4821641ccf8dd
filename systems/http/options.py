"""The section `[http]` of the configuration. Owns the keys and their bounds; `server.py` applies them."""

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
"""Keys of `[http]` that a running node reloads on SIGHUP: those that do not set the size of existing parts."""


class HttpOptions(FaceOptions, frozen=True):
    """The HTTP face: all systems for any language with an HTTP client. Needs the extra `http` of `muster-server`."""

    bind: Annotated[
        str,
        key(
            "TCP address, `host:port`; an IPv6 host in brackets",
            "loopback: it speaks no TLS, so put a reverse proxy in front; port 0: Muster chooses a free port",
        ),
    ] = "127.0.0.1:0"
    keys_file: Annotated[
        str,
        key(
            "File of API keys, which `muster key` writes; changes apply within two seconds",
            "empty: `http-keys.json` in `instance.dir`",
        ),
    ] = ""
    hosts: Annotated[
        tuple[str, ...],
        key(
            "Accepted names in a `Host` header, `*.example.com` for all subdomains; addresses and `localhost` "
            "are always accepted",
            "a page of another site that points its domain here gets no answer",
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        key(
            "Origins whose pages may send requests from a browser, for example `https://example.com`",
            "empty: none; CORS is off",
        ),
    ] = ()
    docs: Annotated[
        bool, key("Serve the API's page at `/docs` and its description at `/openapi.json`", "neither reveals a secret")
    ] = True
    body_bytes_max: Annotated[
        int,
        key("Limit of a request's body", "a batch of 1,000 messages of 1 KiB", "bytes", ge=1_024, le=64 << 20),
    ] = 1 << 20
    head_bytes_max: Annotated[
        int, key("Limit of a request's head: its line and its headers", "as usual", "bytes", ge=1_024, le=1 << 20)
    ] = 16_384
    batch_max: Annotated[
        int,
        key("Limit of messages in one request", "each message gets a result of its own", "messages", ge=1, le=10_000),
    ] = 1_000
    request_s_max: Annotated[
        float,
        key(
            "Limit of the time from the head of a request to the end of its answer",
            "streams have no limit",
            "s",
            ge=0.1,
            le=600,
        ),
    ] = 30.0
    head_s_max: Annotated[
        float,
        key(
            "Limit of the wait for the head of a request; idle connections are closed after it too",
            "",
            "s",
            ge=0.1,
            le=600,
        ),
    ] = 15.0
    connections_max: Annotated[
        int,
        key(
            "Limit of connections; further ones are closed at once",
            "a descriptor each",
            "connections",
            ge=1,
            le=1 << 20,
        ),
    ] = 10_000
    requests_rate: Annotated[
        int,
        key(
            "Limit of requests per second of one key or user; bursts of twice as many after a pause",
            "one key cannot use up the whole process",
            "1/s",
            ge=1,
            le=1_000_000,
        ),
    ] = 500
    messages_rate: Annotated[
        int,
        key(
            "Limit of messages and commands per second that one key or user publishes; bursts of twice as many "
            "after a pause",
            "each message of a batch counts",
            "1/s",
            ge=1,
            le=10_000_000,
        ),
    ] = 10_000
    idempotency_s: Annotated[
        int,
        key("Lifetime of the stored answer to an `Idempotency-Key`", "longer than clients retry", "s", ge=1, le=86_400),
    ] = 600
    idempotency_max: Annotated[
        int,
        key(
            "Limit of stored answers; the oldest is dropped first",
            "about 100 bytes each, 50 KB for a batch",
            "",
            ge=1,
            le=1 << 20,
        ),
    ] = 10_000
    sessions_max: Annotated[
        int,
        key(
            "Limit of users with tokens at once, each with its own sessions at a gateway and a proxy",
            "two sockets per user",
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
            "Limit of rooms with readers, each with one membership for all its streams",
            "bounds the memory together with `room_bytes_max`: 1 GiB",
            "rooms",
            ge=1,
            le=100_000,
        ),
    ] = 1_024
    room_bytes_max: Annotated[
        int,
        key(
            "Limit of recent messages of a room with readers; a stream that lags further gets a gap",
            "some seconds of a busy room",
            "bytes",
            ge=65_536,
            le=1 << 30,
        ),
    ] = 1 << 20
    history_max: Annotated[
        int,
        key(
            "Limit of recent messages that a request may ask for or resume from; at most `gateway.history_max`",
            "the default of gateways",
            "messages",
            ge=1,
            le=65_536,
        ),
    ] = 1_000
    room_idle_s: Annotated[
        float,
        key("Time after which a room without readers is left", "a client may come back", "s", ge=0.1, le=600),
    ] = 10.0
    streams_max: Annotated[int, key("Limit of event streams", "a connection each", "streams", ge=1, le=1 << 20)] = 8_000
    heartbeat_s: Annotated[
        float,
        key(
            "Interval of comments on a quiet stream",
            "proxies close idle connections after 30 or 60 s",
            "s",
            ge=0.1,
            le=600,
        ),
    ] = 15.0
    stall_s: Annotated[
        float, key("A stream ends if its client reads nothing for this time", "two heartbeats", "s", ge=0.1, le=600)
    ] = 30.0
    drain_s: Annotated[
        float,
        key(
            "Limit of the time for running requests to finish when the process ends",
            "`muster up` waits 12 s with a registry and 2 s without; systemd and Kubernetes as configured",
            "s",
            ge=0,
            le=600,
        ),
    ] = 10.0
