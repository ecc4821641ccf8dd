"""Tokens identify the clients of an edge."""

import time
from typing import Any, Final

import jwt
import pytest

from muster_server.plane.auth import EVERYTHING, Admitted, TokenAuthenticator
from muster_server.plane.trust import Trust
from muster_server.plane.users import EMBEDDED_USER
from muster_server.systems.edge.tokens import EdgeAuthenticator

SECRET: Final = b"s" * 32
SHARED: Final = b"the shared token"


def edge(*anonymous: str) -> EdgeAuthenticator:
    return EdgeAuthenticator(SHARED, Trust(secrets=(SECRET,)), EVERYTHING, anonymous)


def token(secret: bytes = SECRET, seconds: float = 60, **claims: Any) -> bytes:
    return jwt.encode({"sub": "7", "exp": int(time.time() + seconds)} | claims, secret, algorithm="HS256").encode()


def test_a_client_without_a_token_is_refused_unless_the_configuration_gives_it_rights() -> None:
    assert edge().authenticate(b"") == "bad_credential"
    said = edge("read").authenticate(b"")
    assert isinstance(said, Admitted)
    assert said.user == EMBEDDED_USER
    assert said.until is None
    assert said.grant.words("a:b") == ["read"]


def test_an_expired_token_is_told_apart_from_a_wrong_one() -> None:
    assert edge().authenticate(token(seconds=-60)) == "expired"
    assert edge().authenticate(token(secret=b"x" * 32, seconds=-60)) == "bad_credential"
    assert edge().authenticate(b"no token") == "bad_credential"
    assert edge().for_room(token(seconds=-60, channel="a:b"), "a:b") == "expired"


def test_a_token_without_an_end_opens_nothing() -> None:
    endless = jwt.encode({"sub": "7"}, SECRET, algorithm="HS256").encode()
    assert edge().authenticate(endless) == "bad_credential"
    nobody = jwt.encode({"exp": int(time.time()) + 60}, SECRET, algorithm="HS256").encode()
    assert edge().authenticate(nobody) == "bad_credential"


def test_a_client_that_may_only_publish_is_admitted() -> None:
    only = token(cap={"a:*": ["publish"]})
    assert isinstance(edge().authenticate(only), Admitted)
    assert TokenAuthenticator(SHARED, "read", Trust(secrets=(SECRET,))).authenticate(only) == "not_allowed"


def test_a_token_names_rooms_that_its_client_is_subscribed_to() -> None:
    said = edge().authenticate(token(cap={"a:*": ["read"]}, rooms=["a:b", "a:c"]))
    assert isinstance(said, Admitted)
    assert said.rooms == ("a:b", "a:c")
    without = edge().authenticate(token(cap={"a:*": ["read"]}))
    assert isinstance(without, Admitted)
    assert without.rooms == ()


@pytest.mark.parametrize(
    "rooms",
    ["a:b", [7], {"a:b": {}}, ["b:c"], ["a:"], ["a:b"] * 65, None],
    ids=["text", "number", "object", "no right", "no name", "too many", "null"],
)
def test_a_token_with_wrong_rooms_opens_nothing(rooms: Any) -> None:
    assert edge().authenticate(token(cap={"a:*": ["read"], "b:*": ["publish"]}, rooms=rooms)) == "bad_credential"


def test_rooms_of_a_token_mean_nothing_at_a_gateway() -> None:
    said = TokenAuthenticator(SHARED, "read", Trust(secrets=(SECRET,))).authenticate(token(rooms=["a:b"]))
    assert isinstance(said, Admitted)
    assert said.rooms == ()


def test_a_token_for_one_room_is_for_no_other() -> None:
    said = edge().for_room(token(channel="a:b"), "a:b")
    assert isinstance(said, Admitted)
    assert said.user == 7
    assert set(said.grant.words("a:b")) == {"read", "history", "members"}
    assert said.grant.words("a:c") == []
    assert edge().for_room(token(channel="a:b"), "a:c") == "bad_credential"
    assert edge().for_room(token(), "a:b") == "bad_credential"


@pytest.mark.parametrize("revoked", [{"users": frozenset({7})}, {"tokens": frozenset({"t1"})}])
def test_a_revoked_user_or_token_opens_no_room(revoked: dict[str, Any]) -> None:
    authenticator = edge()
    authenticator.take_trust(Trust(secrets=(SECRET,), **revoked))
    assert authenticator.for_room(token(channel="a:b", jti="t1"), "a:b") == "bad_credential"
    assert authenticator.authenticate(token(jti="t1")) == "bad_credential"
