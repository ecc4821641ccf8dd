"""Errors as problem details (RFC 9457): one table of codes, one exception, one body.

`type` is `urn:muster:problem:CODE` and never changes its meaning. Knows no route and no system.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from muster_server.plane.causes import shown

CONTENT_TYPE: Final = "application/problem+json"
TYPE: Final = "urn:muster:problem:"


class Kind(NamedTuple):
    """The meaning of a code."""

    status: int
    retryable: bool
    """Whether the same request may succeed later."""
    title: str


KINDS: Final[Mapping[str, Kind]] = {
    "bad_request": Kind(400, False, "A parameter or header is malformed"),
    "bad_body": Kind(400, False, "The body does not match its Content-Type"),
    "bad_room_name": Kind(400, False, "The room name is malformed"),
    "too_much_history": Kind(400, False, "More messages of history than are kept"),
    "no_credential": Kind(401, False, "The request has no API key and no token"),
    "bad_credential": Kind(401, False, "The API key or token is unknown, revoked or expired"),
    "not_allowed": Kind(403, False, "The API key or token does not allow this"),
    "not_found": Kind(404, False, "Nothing at this path"),
    "method_not_allowed": Kind(405, False, "The path does not take this method"),
    "request_timeout": Kind(408, True, "The request did not come in time"),
    "in_progress": Kind(409, True, "A request with this Idempotency-Key is still running"),
    "conflict": Kind(409, False, "It exists with other content"),
    "name_collision": Kind(409, False, "Another room has the same number; choose another name"),
    "too_long": Kind(413, False, "The body, message or batch is too long"),
    "unsupported_media_type": Kind(415, False, "The Content-Type is not supported here"),
    "unknown_host": Kind(421, False, "The Host header names another server"),
    "idempotency_mismatch": Kind(422, False, "The Idempotency-Key was used with another request"),
    "rate_limited": Kind(429, True, "Too many requests, messages or commands"),
    "head_too_long": Kind(431, False, "The headers are too long"),
    "internal": Kind(500, False, "A defect of the server; its log has the request id"),
    "responder_failed": Kind(502, False, "The responder took the request but has no reply"),
    "busy": Kind(503, True, "No capacity for this now"),
    "no_responders": Kind(503, True, "The room has no responder now"),
    "disk_full": Kind(503, True, "The disk of the store is full; nothing was changed"),
    "draining": Kind(503, True, "The server is about to end"),
    "unavailable": Kind(503, True, "The servers behind do not answer"),
    "timeout": Kind(504, True, "No answer in time; the action may have been carried out"),
}
RETRY_S: Final[Mapping[str, float]] = {
    "in_progress": 1,
    "busy": 1,
    "no_responders": 1,
    "disk_full": 5,
    "draining": 1,
    "unavailable": 1,
    "rate_limited": 1,
}
"""`Retry-After` without a better estimate."""


class Problem(Exception):
    """Ends a request with this code. `retry_after` in seconds."""

    def __init__(self, code: str, detail: str = "", *, retry_after: float | None = None, **more: Any) -> None:
        super().__init__(code, detail)
        self.code, self.kind = code, KINDS[code]
        self.detail = shown(detail) if self.kind.status >= 500 else detail
        """Details of a failed store or server do not show its address, URL, user or file."""
        self.retry_after = RETRY_S.get(code) if retry_after is None else retry_after
        self.more = more

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the body."""
        headers = {"cache-control": "no-store"}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        if self.kind.status == 401:
            headers["www-authenticate"] = 'Bearer realm="muster"'
        if self.kind.status == 408:
            headers["connection"] = "close"
        return headers

    def short(self) -> dict[str, Any]:
        """The same for one message of a batch."""
        return {"code": self.code, "detail": self.detail or self.kind.title, "retryable": self.kind.retryable}

    def body(self, request_id: str) -> bytes:
        """The document."""
        document: dict[str, Any] = {
            "type": TYPE + self.code,
            "title": self.kind.title,
            "status": self.kind.status,
            **self.short(),
            "request_id": request_id,
        }
        if self.retry_after is not None:
            document["retry_after"] = round(self.retry_after, 3)
        return msgspec.json.encode(document | self.more) + b"\n"
