"""A credential opens a session as one user or not at all, whatever is wrong with it."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from muster_server import _engines
from muster_server.plane import users
from muster_server.plane.auth import (
    LEEWAY_S,
    VALID_S_MAX,
    Admitted,
    Patterns,
    Sends,
    TokenAuthenticator,
    mint,
    token_number,
)
from muster_server.plane.spec import SpecError
from muster_server.plane.trust import Trust, probe_token, revoked, signing_secrets
from muster_server.plane.users import EMBEDDED_USER, HASHED, Texts, user_of

SECRET, OTHER = b"s" * 64, b"o" * 32
TOKEN = b"the shared one"
KEY = b"n" * 16
HOUR = 3_600
LONGEST = 2**64 - 1


def signed(secret: bytes = SECRET, algorithm: str = "HS256", **claims: Any) -> bytes:
    """A token with these claims, else those of user 7 for an hour; a claim of None is left out."""
    every = {"sub": "7", "exp": int(time.time()) + HOUR, "rights": ["read", "publish"]} | claims
    kept = {name: value for name, value in every.items() if value is not None}
    return jwt.encode(kept, secret, algorithm=algorithm).encode()


def unsigned(header: object, claims: object) -> bytes:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    return b".".join([*parts, b""])


def gateway(*secrets: bytes) -> TokenAuthenticator:
    return TokenAuthenticator(TOKEN, "read", Trust(secrets or (SECRET,)))


def proxy(*secrets: bytes) -> TokenAuthenticator:
    return TokenAuthenticator(TOKEN, "publish", Trust(secrets or (SECRET,)))


def said(checks: TokenAuthenticator, credential: bytes) -> int | str:
    """The user, or the code of the refusal."""
    answer = checks.authenticate(credential)
    return answer.user if isinstance(answer, Admitted) else answer


def admitted(checks: TokenAuthenticator, credential: bytes) -> Admitted:
    answer = checks.authenticate(credential)
    assert isinstance(answer, Admitted), answer
    return answer


def test_the_shared_token_is_one_user_who_may_do_all() -> None:
    assert said(gateway(), TOKEN) == said(proxy(), TOKEN) == EMBEDDED_USER
    assert said(gateway(), TOKEN + b"x") == "bad_credential"


@pytest.mark.parametrize("user", [2, 7, LONGEST])
def test_a_token_opens_as_the_user_that_it_names(user: int) -> None:
    assert said(gateway(), signed(sub=str(user))) == user


@pytest.mark.parametrize(
    ("rights", "reads", "publishes"),
    [
        (None, True, False),
        (["read"], True, False),
        (["publish"], False, True),
        (["read", "publish", "fly"], True, True),
        ([], False, False),
    ],
)
def test_a_gateway_lets_in_who_may_read_and_a_proxy_who_may_publish(
    rights: list[str] | None, reads: bool, publishes: bool
) -> None:
    token = signed(rights=rights)
    assert said(gateway(), token) == (7 if reads else "not_allowed")
    assert said(proxy(), token) == (7 if publishes else "not_allowed")


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": None},
        {"sub": str(EMBEDDED_USER)},
        {"sub": "0"},
        {"sub": "-7"},
        {"sub": "+7"},
        {"sub": "07"},
        {"sub": " 7"},
        {"sub": "7\n"},
        {"sub": "7.0"},
        {"sub": "0x7"},
        {"sub": "\u0667"},  # a digit, elsewhere
        {"sub": ""},
        {"sub": "ann"},
        {"sub": str(LONGEST + 1)},
        {"sub": "9" * 400},
        {"sub": 7},
        {"sub": ["7"]},
        {"exp": None},
        {"exp": "never"},
        {"exp": float("inf")},
        {"exp": int(time.time()) * 1_000},  # milliseconds
        {"exp": int(time.time()) + VALID_S_MAX + 24 * HOUR},  # the test may run long after this line
        {"exp": int("9" * 400)},
        {"exp": int(time.time()) - 60},
        {"nbf": int(time.time()) + HOUR},
        {"iat": int(time.time()) + HOUR},
        {"aud": "another service"},
        {"rights": "read"},
        {"rights": {"read": True}},
        {"rights": [1]},
        {"cap": None},
        {"cap": ["sports:*"]},
        {"cap": {"sports:*": "read"}},
        {"cap": {"sports:*": [1]}},
        {"cap": {"sp*rts": ["read"]}},
        {"cap": {"": ["read"]}},
        {"cap": {"Sports:*": ["read"]}},
        {"jti": 7},
    ],
    ids=str,
)
def test_a_token_with_a_wrong_claim_opens_nothing(claims: dict[str, Any]) -> None:
    made = {name: value for name, value in claims.items() if name != "sub"}
    if "sub" in claims:  # the library signs no subject that is not text
        every = {"exp": int(time.time()) + HOUR, **({} if claims["sub"] is None else {"sub": claims["sub"]})}
        token = jwt.api_jws.encode(json.dumps(every).encode(), SECRET, "HS256").encode()
    elif claims == {"cap": None} or "jti" in claims:  # the library signs no such claim
        every = {"sub": "7", "exp": int(time.time()) + HOUR, **claims}
        token = jwt.api_jws.encode(json.dumps(every).encode(), SECRET, "HS256").encode()
    else:
        token = signed(**made)
    assert said(gateway(), token) == "bad_credential"


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b".",
        b"..",
        b"\xff\x00",
        b"[" * 1_000,
        b"a.b.c",
        b"." * 1_000,
        signed(OTHER),
        signed()[:-3],
        signed() + b"x",
        unsigned({"alg": "none"}, {"sub": "7", "exp": int(time.time()) + HOUR}),
        unsigned({"alg": "HS256"}, {"sub": "7", "exp": int(time.time()) + HOUR}),
        base64.urlsafe_b64encode(b"[" * 700) + b".e30.",
        signed(algorithm="HS384"),
        signed(algorithm="HS512"),
    ],
    ids=range(15),
)
def test_a_token_that_is_not_signed_as_it_must_be_opens_nothing(token: bytes) -> None:
    assert said(gateway(), token) == said(proxy(), token) == "bad_credential"


@pytest.mark.parametrize(
    ("cap", "reads", "publishes"),
    [
        ({"sports:*": ["read"]}, True, False),
        ({"chat:7": ["publish"], "*": []}, False, True),
        ({"chat:7": ["command"]}, False, True),
        ({"chat:7": ["members"]}, False, True),
        ({"chat:7": ["history"]}, False, False),
        ({"*": ["read", "publish", "fly"]}, True, True),
        ({}, False, False),
    ],
)
def test_a_cap_opens_the_doors_that_one_of_its_rights_needs(
    cap: dict[str, list[str]], reads: bool, publishes: bool
) -> None:
    token = signed(cap=cap, rights=["read", "publish"])
    assert said(gateway(), token) == (7 if reads else "not_allowed")
    assert said(proxy(), token) == (7 if publishes else "not_allowed")


def test_a_cap_gives_rights_room_by_room_and_no_others() -> None:
    cap = {"sports:*": ["read"], "sports:final": ["read", "publish"], "lobby": ["read", "history"]}
    grant = admitted(gateway(), signed(cap=cap)).grant
    rooms = ("sports:semi", "sports:final", "default:lobby", "chat:7")
    assert [grant.words(room) for room in rooms] == [["read"], ["read", "publish"], ["read", "history"], []]


DEFAULTS: Patterns = (("*", ("read", "publish", "command", "history")), ("chat:*", ()))


@pytest.mark.parametrize(
    ("rights", "elsewhere"),
    [(["read"], ["read", "history"]), (["publish"], ["publish", "command"]), (["read", "publish"], None)],
)
def test_without_a_cap_the_rights_are_those_of_the_namespace_that_the_token_says_too(
    rights: list[str], elsewhere: list[str] | None
) -> None:
    door = "read" if "read" in rights else "publish"
    checks = TokenAuthenticator(TOKEN, "read" if door == "read" else "publish", Trust((SECRET,)), DEFAULTS)
    grant = admitted(checks, signed(rights=rights)).grant
    assert grant.words("sports:final") == (elsewhere or ["read", "publish", "command", "history"])
    assert grant.words("chat:7") == []
    assert admitted(checks, TOKEN).grant.words("chat:7") == _engines.RIGHTS, "of the programs' own token"


def test_a_session_ends_with_its_token() -> None:
    end = int(time.time()) + HOUR
    assert admitted(gateway(), signed(exp=end)).until == end + LEEWAY_S
    assert admitted(gateway(), TOKEN).until is None


def test_a_revoked_user_and_a_revoked_token_open_nothing() -> None:
    checks = gateway()
    ann, bob = signed(jti="a"), signed(sub="8", jti="b")
    assert admitted(checks, ann).token == token_number("a") != token_number("b")
    assert admitted(checks, signed()).token == token_number(None) == 0
    checks.take_trust(Trust((SECRET,), users=frozenset({7})))
    assert [said(checks, token) for token in (ann, signed(), bob)] == ["bad_credential", "bad_credential", 8]
    checks.take_trust(Trust((SECRET,), tokens=frozenset({"b"})))
    assert [said(checks, token) for token in (ann, bob, signed(sub="8"))] == [7, "bad_credential", 8]


def test_without_a_secret_no_users_token_opens_anything() -> None:
    nobody = TokenAuthenticator(TOKEN, "read")
    assert said(nobody, signed()) == "bad_credential"
    assert said(nobody, TOKEN) == EMBEDDED_USER


def test_a_token_is_valid_for_a_year_at_most() -> None:
    assert said(gateway(), signed(exp=int(time.time()) + VALID_S_MAX)) == 7


def test_clocks_may_differ_by_a_little() -> None:
    now = int(time.time())
    assert said(gateway(), signed(exp=now - LEEWAY_S / 2)) == 7
    assert said(gateway(), signed(exp=now - LEEWAY_S - 2)) == "bad_credential"


def test_while_one_secret_replaces_another_both_are_good_and_then_the_former_is_not() -> None:
    checks = gateway()
    checks.take_trust(Trust((OTHER, SECRET)))
    assert [said(checks, signed(secret)) for secret in (SECRET, OTHER)] == [7, 7]
    checks.take_trust(Trust((OTHER,)))
    assert [said(checks, signed(secret)) for secret in (SECRET, OTHER)] == ["bad_credential", 7]


def test_a_minted_token_says_user_rights_and_end_and_fits_four_times_into_a_credential() -> None:
    token = mint(SECRET, LONGEST, ["read", "publish"], time.time(), HOUR)
    assert len(token) <= 250
    assert said(proxy(), token.encode()) == LONGEST
    assert said(proxy(), mint(SECRET, 7, ["read"], time.time(), HOUR).encode()) == "not_allowed"
    assert said(proxy(), mint(SECRET, 7, ["publish"], time.time() - 2 * HOUR, HOUR).encode()) == "bad_credential"


def test_secrets_stand_in_a_file_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "jwt.secret"
    for content, secrets in ((SECRET, (SECRET,)), (OTHER + b"\n" + SECRET + b"\r\n\n", (OTHER, SECRET))):
        file.write_bytes(content)
        assert signing_secrets(str(file)) == secrets
    assert signing_secrets("") == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 secrets"),
        (b"\n\n", "0 secrets"),
        (SECRET + b"\n" + b"x" * 31, "secret 2 has fewer than 32 bytes"),
        (b"\n".join([SECRET, OTHER, SECRET]), "3 secrets"),
    ],
)
def test_a_file_without_good_secrets_is_refused_and_its_content_is_not_told(
    tmp_path: Path, content: bytes, words: str
) -> None:
    file = tmp_path / "jwt.secret"
    file.write_bytes(content)
    with pytest.raises(SpecError, match=words) as told:
        signing_secrets(str(file))
    assert SECRET.decode() not in str(told.value)
    with pytest.raises(SpecError, match="cannot be read"):
        signing_secrets(str(tmp_path / "none"))


def test_revoked_users_and_tokens_stand_in_a_file_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "revoked"
    file.write_text("# left the team\nuser 7\n\n  token 5f#2c \r\nuser 18446744073709551615\n", encoding="utf-8-sig")
    assert revoked(str(file), KEY) == (frozenset({7, LONGEST}), frozenset({"5f#2c"}))
    assert revoked("", KEY) == (frozenset(), frozenset())
    file.write_text("user ann\n")
    assert revoked(str(file), KEY) == (frozenset({user_of("ann", KEY)}), frozenset())
    for line in ("user", "user -7", "user 1", f"user {LONGEST + 1}", f"user {'x' * 65}", "token", "7", "users 7"):
        file.write_text(f"user 8\n{line}\n")
        with pytest.raises(SpecError, match="revoked:2: "):
            revoked(str(file), KEY)
    with pytest.raises(SpecError, match="cannot be read"):
        revoked(str(tmp_path / "none"), KEY)


def named(key: bytes = KEY) -> TokenAuthenticator:
    """A gateway that has the key of room names."""
    return TokenAuthenticator(TOKEN, "read", Trust((SECRET,), user_key=key))


@pytest.mark.parametrize("text", ["ann", "ann@example.org", "0x7", "Zo\u00eb \u4e00", "x" * 64, "7.0"])
def test_a_user_may_be_text_which_every_node_with_the_key_turns_into_the_same_number(text: str) -> None:
    first, again = admitted(named(), signed(sub=text)), admitted(named(), signed(sub=text))
    assert first.user == again.user == user_of(text, KEY) >= HASHED
    assert first.text == text
    assert said(named(b"another key " + bytes(4)), signed(sub=text)) != first.user, (
        "nobody finds a double without the key"
    )
    assert said(gateway(), signed(sub=text)) == "bad_credential", "without the key nodes would differ"


def test_numbers_stay_themselves_and_odd_text_is_no_user() -> None:
    assert said(named(), signed(sub="7")) == 7
    odd = ("", "0", "1", "07", "-7", "+7", str(LONGEST + 1), " ann", "ann ", "a\nb", "a\u202eb", "a\x1b[2J", "x" * 65)
    assert [said(named(), signed(sub=text)) for text in odd] == ["bad_credential"] * len(odd)


def test_a_revoked_user_of_text_opens_nothing() -> None:
    checks = TokenAuthenticator(TOKEN, "read", Trust((SECRET,), users=frozenset({user_of("ann", KEY)}), user_key=KEY))
    assert said(checks, signed(sub="ann")) == "bad_credential"
    assert said(checks, signed(sub="bob")) == user_of("bob", KEY)


def test_the_texts_that_were_seen_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "TEXTS_MAX", 2)
    texts = Texts()
    for user, text in ((1, "a"), (2, "b"), (1, "a"), (3, "c")):
        texts.keep(user, text)
    assert texts.of([1, 2, 3]) == {1: "a", 3: "c"}


SENDS: Sends = ((1_000, 1_999, ("7",)), (0, LONGEST, ()))


def to(checks: TokenAuthenticator, token: bytes, *users: int) -> list[bool]:
    """Whether the user of a token may send to each of these."""
    return [admitted(checks, token).recipients.has(user) for user in users]


def test_a_token_says_to_whom_its_user_may_send_and_without_that_the_range_of_the_user_does() -> None:
    checks = TokenAuthenticator(TOKEN, "publish", Trust((SECRET,)), sends=SENDS)
    publishes: dict[str, Any] = {"rights": ["publish"]}
    assert to(checks, signed(**publishes), 7, 8) == [False, False]
    assert to(checks, signed(sub="1500", **publishes), 7, 8) == [True, False]
    assert to(checks, signed(sub="1500", send=[], **publishes), 7, 8) == [False, False]
    assert to(checks, signed(send=["8", "70*"], **publishes), 7, 8, 705) == [False, True, True]
    assert to(checks, signed(send=["*"], **publishes), 7, LONGEST) == [True, True]
    assert to(checks, TOKEN, 7) == [True], "of the programs' own token"
    assert to(checks, probe_token(TOKEN), 7) == [False], "of the prober's"


def test_a_token_names_users_of_text_whole() -> None:
    checks = TokenAuthenticator(TOKEN, "publish", Trust((SECRET,), user_key=KEY), sends=SENDS)
    ann, bob = user_of("ann", KEY), user_of("bob", KEY)
    assert to(checks, signed(send=["ann", "8"]), ann, bob, 8) == [True, False, True]
    assert [said(checks, signed(send=[wrong])) for wrong in ("an*", "*n", " ann", "")] == ["bad_credential"] * 4


def test_a_token_that_may_send_alone_opens_a_proxy_and_publishes_nowhere() -> None:
    checks = TokenAuthenticator(TOKEN, "publish", Trust((SECRET,)), sends=SENDS)
    grant = admitted(checks, signed(rights=["read"], send=["7"])).grant
    assert not grant.has_any(["publish", "command", "members"])
    assert said(checks, signed(rights=["read"], send=[])) == said(checks, signed(rights=["read"])) == "not_allowed"
    assert said(proxy(), signed(rights=["read"], send=["7"])) == "not_allowed", "where nobody sends"


@pytest.mark.parametrize("send", ["7", ["x"], [7], ["7*7"], ["07"], {"7": []}])
def test_a_token_that_says_it_wrong_opens_nothing(send: Any) -> None:
    for sends in (None, SENDS):
        checks = TokenAuthenticator(TOKEN, "publish", Trust((SECRET,)), sends=sends)
        assert said(checks, signed(rights=["publish"], send=send)) == "bad_credential"
