"""The public keys that verify users' tokens: a JSON Web Key Set (RFC 7517) in a file, or at a URL.

Owns the fetching of a set and its age. Knows no claim and no user.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import jwt
import structlog

from muster_server.plane.spec import SpecError

ALGORITHMS: Final = ("EdDSA", "ES256", "RS256")
"""Only algorithms whose verifying key cannot sign."""
KEYS_MAX: Final = 64
FRESH_S: Final = 300.0
"""A set is fetched again when it is older than this, in seconds."""
PAUSE_S: Final = 10.0
"""Shortest time between two fetches, in seconds, whatever keys tokens name: a stranger can name any."""
TIMEOUT_S: Final = 5.0

Keys = Mapping[str | None, jwt.PyJWK]
"""Keys by key id (`kid`)."""
Fetch = Callable[[str], Any]
"""Returns the JSON at a URL. Blocks."""


class NotYet(Exception):
    """The set that may contain the key is still being fetched."""


def keys_of(said: Any) -> Keys:
    """The usable keys of a set, given as parsed JSON. Raises `ValueError`."""
    try:
        made = jwt.PyJWKSet.from_dict(said)
    except (jwt.PyJWTError, AttributeError, TypeError, KeyError) as error:
        raise ValueError(f"is not a JSON Web Key Set: {error}") from None
    keys = [key for key in made.keys if key.algorithm_name in ALGORITHMS and key.public_key_use in {None, "sig"}]
    if not keys:
        raise ValueError(f"has no key for any of {', '.join(ALGORITHMS)}")
    if len(keys) > KEYS_MAX:
        raise ValueError(f"has too many keys (limit {KEYS_MAX})")
    return {key.key_id: key for key in keys}


def chosen(keys: Keys, kid: str | None) -> jwt.PyJWK | None:
    """The key that a token names; for a token without a key id, the only key of the set."""
    return next(iter(keys.values())) if kid is None and len(keys) == 1 else keys.get(kid)


def fetched(url: str) -> Any:
    """Fetch a set. Blocks for at most `TIMEOUT_S` seconds."""
    return jwt.PyJWKClient(url, cache_jwk_set=False, timeout=TIMEOUT_S).fetch_data()


class FetchedKeys:
    """The set at a URL, fetched by a thread of its own: at once, when it is old, and for an unknown key.

    While no fetch succeeds, the last set stays in use.
    """

    def __init__(self, url: str, *, fetch: Fetch = fetched, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self._fetch, self._clock = fetch, clock
        self._keys: Keys = {}
        self._tried_at = -FRESH_S
        self._running: threading.Thread | None = None
        self.look()

    def find(self, kid: str | None) -> jwt.PyJWK | None:
        """The key of this id; None: the set has no such key. Raises `NotYet`."""
        key = chosen(self._keys, kid)
        if key is None or self._clock() - self._tried_at > FRESH_S:
            self.look()
        if key is not None:
            return key
        running = self._running  # read first: a thread that has ended has stored its set
        key = chosen(self._keys, kid)
        if key is None and (running is not None or not self._keys):
            raise NotYet
        return key

    def look(self) -> None:
        """Fetch the set unless a fetch is in progress or has just ended."""
        if self._running is not None or self._clock() - self._tried_at < PAUSE_S:
            return
        self._tried_at = self._clock()
        self._running = threading.Thread(target=self._take, name="key set", daemon=True)
        self._running.start()

    def _take(self) -> None:
        try:
            self._keys = keys_of(self._fetch(self.url))
        except Exception as error:  # an exception of a foreign server, or of the HTTP library
            structlog.get_logger().warning(
                "cannot fetch the key set of users' tokens; the last one stays in use",
                url=self.url,
                error=f"{error!r:.200}",
            )
        finally:
            self._running = None


class KeptKeys:
    """The set in a file."""

    def __init__(self, text: str) -> None:
        """Raises `SpecError`."""
        try:
            self._keys: Keys = keys_of(json.loads(text)) if text else {}
        except ValueError as error:
            raise SpecError(f"cluster.jwks: {error}") from None

    def find(self, kid: str | None) -> jwt.PyJWK | None:
        """The key of this id; None: the set has no such key."""
        return chosen(self._keys, kid)
