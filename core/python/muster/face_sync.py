"""One connection of a program with threads to an HTTP face: their calls run one after another.

Owns the connection, and what a failure means. It must not know what is asked. Needs nothing besides Python.
"""

import http.client
import json
import threading
import time
from typing import Any, Final
from urllib.parse import urlsplit

from .errors import Invalid, TimedOut, Unavailable
from .face import problem

TIMEOUT_S: Final = 30.0
IDLE_S: Final = 5.0
"""A connection that was idle for longer, in seconds, is replaced: a face closes idle ones."""


class SyncFace:
    """Asks one HTTP face. `close` once."""

    def __init__(self, url: str, *, key: str = "", token: str = "", timeout: float = TIMEOUT_S) -> None:
        """`url`: `http://host:port` or `https://…` of the face, or of the proxy in front of it. Raises `Invalid`."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
            raise Invalid(f"invalid URL {url!r:.80} of an HTTP face (expected for example http://127.0.0.1:8080)")
        if bool(key) == bool(token):
            raise Invalid("give an API key, or a user's token")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._headers = {"content-type": "application/json"}
        self._headers |= {"x-api-key": key} if key else {"authorization": f"Bearer {token}"}
        self._lock = threading.Lock()
        self._used = 0.0

    def close(self) -> None:
        """Close the connection. Another call opens it again."""
        with self._lock:
            self._connection.close()

    def ask(self, method: str, path: str, document: Any = None) -> Any:
        """The answer, from JSON. Raises `Refused`; `Unavailable` and `TimedOut`: it may be done all the same."""
        body = None if document is None else json.dumps(document, separators=(",", ":")).encode()
        with self._lock:
            if time.monotonic() - self._used > IDLE_S:
                self._connection.close()
            try:
                self._connection.request(method, path, body, self._headers)
                answer = self._connection.getresponse()
                content = answer.read()
            except TimeoutError:
                self._connection.close()
                raise TimedOut("no answer in time; the call may have succeeded") from None
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                raise Unavailable(f"the HTTP face does not answer: {error or type(error).__name__}") from None
            self._used = time.monotonic()
        try:
            said = json.loads(content)
        except ValueError:
            raise Unavailable(f"unexpected answer {answer.status}: the server is not a Muster HTTP face") from None
        if answer.status >= 400:
            raise problem(said)
        return said
