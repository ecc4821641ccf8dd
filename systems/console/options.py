"""The section `[console]` of the configuration."""

from typing import Annotated, Final

from muster_server.plane.options import FaceOptions, key

RELOADS: Final = ("users", "hosts", "session_s", "idle_s", "proxy_header", "proxy_role", "proxy_addresses")
"""Keys of `[console]` that a running node reloads on SIGHUP."""


class ConsoleOptions(FaceOptions, frozen=True):
    """The web console: pages of all systems for operators. Needs the extra `http` of `muster-server`."""

    bind: Annotated[
        str,
        key(
            "TCP address, `host:port`; an IPv6 host in brackets",
            "loopback: it speaks no TLS, so put a reverse proxy in front; port 0: Muster chooses a free port",
        ),
    ] = "127.0.0.1:0"
    users: Annotated[
        tuple[str, ...],
        key(
            "Users with a password, each `NAME:ROLE:HASH` as `muster console user NAME` prints it; `viewer` or `operator`",
            "empty: only one-time logins of `muster console login`, and API keys with the scope `console`",
        ),
    ] = ()
    hosts: Annotated[
        tuple[str, ...],
        key(
            "Accepted names in a `Host` header, `*.example.com` for all subdomains; addresses and `localhost` "
            "are always accepted",
            "a page of another site that points its domain here gets no answer",
        ),
    ] = ()
    session_s: Annotated[
        int, key("Lifetime of a session; then its user logs in again", "a working day", "s", ge=60, le=2_592_000)
    ] = 43_200
    idle_s: Annotated[
        int, key("A session without a request or an open page ends after this time", "", "s", ge=60, le=2_592_000)
    ] = 3_600
    login_s: Annotated[
        int, key("Lifetime of a one-time login", "long enough to open a link", "s", ge=10, le=86_400)
    ] = 600
    proxy_header: Annotated[
        str,
        key(
            "Header with the user's name that a reverse proxy sets after its own login, for example `X-Forwarded-User`",
            "empty: no header is trusted",
        ),
    ] = ""
    proxy_role: Annotated[
        str, key("Role of users of `proxy_header` who are not in `users`: `viewer`, `operator`, or empty for none", "")
    ] = "viewer"
    proxy_addresses: Annotated[
        tuple[str, ...],
        key(
            "Addresses of proxies whose `proxy_header` counts",
            "a proxy on the same host; other senders' headers are ignored",
        ),
    ] = ("127.0.0.1", "::1")
    sample_s: Annotated[
        float,
        key(
            "Time between two readings of all nodes, which open pages show at once",
            "an hour of curves is 720 points",
            "s",
            ge=0.5,
            le=600,
        ),
    ] = 5.0
    pages_max: Annotated[
        int, key("Limit of open pages, each with an event stream", "a connection each", "pages", ge=1, le=100_000)
    ] = 2_000
    audit_bytes_max: Annotated[
        int,
        key(
            "Size at which the audit log is set aside as `console-audit.jsonl.1`, which replaces the former one",
            "about 50,000 actions",
            "bytes",
            ge=65_536,
            le=1 << 30,
        ),
    ] = 16 << 20
