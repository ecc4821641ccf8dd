"""Tokens signed with a private key: a set of public keys, in a file or behind a URL, opens what it signs and no more."""

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from muster_server.plane.auth import Admitted, TokenAuthenticator
from muster_server.plane.jwks import FRESH_S, PAUSE_S, FetchedKeys, NotYet
from muster_server.plane.spec import SpecError
from muster_server.plane.trust import Trust
from tests.waiting import PATIENT_S, until

HOUR = 3_600
ED, OTHER_ED = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
EC, RSA = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65_537, 2_048)
PRIVATE: dict[str, Any] = {"EdDSA": ED, "ES256": EC, "RS256": RSA}
SECRET = b"s" * 64


def public(kid: str, key: Any) -> dict[str, Any]:
    """A key of a set."""
    made: Any
    match key:
        case ed25519.Ed25519PrivateKey():
            made = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
        case ec.EllipticCurvePrivateKey():
            made = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        case _:
            made = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": kid, "use": "sig"}


SET = {"keys": [public(kid, key) for kid, key in PRIVATE.items()]}


def signed(algorithm: str, key: Any, kid: str | None, **claims: Any) -> bytes:
    every = {"sub": "7", "exp": int(time.time()) + HOUR, "rights": ["read"]} | claims
    return jwt.encode(every, key, algorithm, headers={} if kid is None else {"kid": kid}).encode()


def said(checks: TokenAuthenticator, credential: bytes) -> int | str:
    answer = checks.authenticate(credential)
    return answer.user if isinstance(answer, Admitted) else answer


def by(*keys: dict[str, Any], secrets: tuple[bytes, ...] = ()) -> TokenAuthenticator:
    return TokenAuthenticator(b"shared", "read", Trust(secrets, keys=json.dumps({"keys": list(keys)})))


@pytest.mark.parametrize("algorithm", PRIVATE)
def test_a_token_signed_with_the_private_key_of_the_set_opens(algorithm: str) -> None:
    checks = by(*SET["keys"], secrets=(SECRET,))
    assert said(checks, signed(algorithm, PRIVATE[algorithm], algorithm)) == 7
    assert said(checks, jwt.encode({"sub": "8", "exp": time.time() + HOUR}, SECRET).encode()) == 8, "beside HS256"
    assert said(checks, signed(algorithm, PRIVATE[algorithm], algorithm, exp=int(time.time()) - 60)) == "bad_credential"


def test_a_token_names_its_key_unless_there_is_one() -> None:
    one, two = by(public("a", ED)), by(public("a", ED), public("b", OTHER_ED))
    assert said(one, signed("EdDSA", ED, None)) == 7
    assert said(two, signed("EdDSA", ED, None)) == "bad_credential"
    assert said(two, signed("EdDSA", OTHER_ED, "b")) == 7
    assert said(two, signed("EdDSA", OTHER_ED, "a")) == "bad_credential"
    assert said(one, signed("EdDSA", OTHER_ED, "c")) == "bad_credential"


def test_a_public_key_is_no_secret_and_a_secret_in_a_set_no_key() -> None:
    """Everybody knows the public key, and could sign with it if it were taken for a secret."""
    known = ED.public_key().public_bytes_raw()
    checks = by(public("a", ED))
    for secret in (known, known.hex().encode()):
        assert said(checks, signed("HS256", secret, "a")) == "bad_credential"
    symmetric = {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET).decode().rstrip("="), "kid": "s", "alg": "HS256"}
    with pytest.raises(SpecError, match=r"cluster.jwks: has no key for any of EdDSA"):
        by(symmetric)


@pytest.mark.parametrize("text", ["nonsense", "[]", "{}", '{"keys": []}', '{"keys": [{"kty": "EC"}]}', '{"keys": 7}'])
def test_a_set_without_keys_is_refused_and_changes_nothing(text: str) -> None:
    checks = by(public("a", ED))
    with pytest.raises(SpecError, match=r"cluster\.jwks"):
        checks.take_trust(Trust(keys=text))
    assert said(checks, signed("EdDSA", ED, "a")) == 7


class _Provider:
    """A server of key sets on loopback."""

    def __init__(self) -> None:
        self.body, self.asked = json.dumps({"keys": [public("a", ED)]}), 0
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(provider.body.encode())

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


async def test_a_set_behind_a_url_is_fetched_and_a_token_waits_for_it() -> None:
    provider = _Provider()
    try:
        checks = TokenAuthenticator(b"shared", "read", Trust(keys_url=provider.url))
        await until(lambda: said(checks, signed("EdDSA", ED, "a")) != "not_ready")
        assert said(checks, signed("EdDSA", ED, "a")) == 7
        assert said(checks, signed("EdDSA", OTHER_ED, "b")) == "bad_credential"
        assert provider.asked == 1
        checks.take_trust(Trust((SECRET,), keys_url=provider.url))
        assert said(checks, signed("EdDSA", ED, "a")) == 7, "the set stays"
    finally:
        provider.close()


async def test_an_unknown_key_has_the_set_fetched_again_but_not_too_often_and_the_last_set_stays() -> None:
    now, asked = 0.0, 0
    answers: list[Any] = [{"keys": [public("a", ED)]}]

    may_answer = threading.Event()
    may_answer.set()

    def fetch(_url: str) -> Any:
        nonlocal asked
        asked += 1
        may_answer.wait(PATIENT_S)
        return answers[-1]

    keys = FetchedKeys("https://idp.example/keys", fetch=fetch, clock=lambda: now)
    await until(lambda: keys._running is None)
    assert keys.find("a") is not None
    answers.append({"keys": [public("b", OTHER_ED)]})
    assert keys.find("b") is None, "it was fetched just now"
    now = PAUSE_S + 1
    may_answer.clear()
    with pytest.raises(NotYet):
        keys.find("b")
    may_answer.set()
    await until(lambda: keys._running is None)
    assert keys.find("b") is not None
    answers.append({"keys": "of a broken server"})
    now = 2 * FRESH_S
    assert keys.find("b") is not None
    await until(lambda: keys._running is None)
    assert (keys.find("b") is not None, asked) == (True, 3)


async def test_before_any_set_came_a_token_is_not_judged() -> None:
    def fetch(_url: str) -> Any:
        raise OSError("no route")

    keys = FetchedKeys("https://idp.example/keys", fetch=fetch)
    await until(lambda: keys._running is None)
    with pytest.raises(NotYet):
        keys.find("a")
