"""Pages of accounts: register with a code by mail or phone, log in, log out, the token of a page for the edge."""

import contextlib
import hashlib
import hmac
import re
import secrets
import time
from typing import Any, Final, cast

import jwt
from litestar import Response, get, post
from litestar.exceptions import ClientException, TooManyRequestsException
from sqlalchemy import CursorResult, delete, select, update
from sqlalchemy.exc import IntegrityError

from .. import jobs
from ..desk import Asked, field_of, logged_in, logged_out, page, services_of, sessions_of, visitor_of
from ..services import Services
from ..tables import Account, Count, Registration, new_id, now
from . import passwords
from .sessions import Visitor

EMAIL: Final = re.compile(r"[^@\s<>\"]{1,64}@[^@\s<>\"]{1,180}")
PHONE: Final = re.compile(r"\+[1-9][0-9]{7,14}")
CODE_LASTS_S: Final = 1_800
TRIES_MAX: Final = 5
FAILURES_LAST_S: Final = 900
CODES_MAX: Final = 3
"""Codes to one contact in an hour: a text costs money, and nobody wants a hundred mails."""
CODES_LAST_S: Final = 3_600
TOKEN_S: Final = 300


@get("/register")
async def register_page(request: Asked) -> Response[str]:
    """The form of a new account."""
    return page(request, "register.html")


@post("/register", status_code=200)
async def register(request: Asked) -> Response[Any]:
    """Send a code. The answer is the same for a contact that has an account: its owner alone learns of it."""
    services = services_of(request.app.state)
    contact = await _contact(request)
    kind = "department" if await field_of(request, "kind", 12) == "department" else "person"
    department = await field_of(request, "department", 80, label="Department") if kind == "department" else ""
    head = await field_of(request, "head", 60, label="Head of the department") if kind == "department" else ""
    name = await field_of(request, "name", 60, 2)
    password = await field_of(request, "password", passwords.LONGEST, passwords.SHORTEST)
    if await _count(services, _digest("code", contact), CODES_LAST_S) > CODES_MAX:
        raise TooManyRequestsException("Too many codes were sent to you. Wait for an hour.")
    kept, code, id = await passwords.hashed(password), f"{secrets.randbelow(10**6):06}", secrets.token_hex(16)
    async with services.writing() as session:
        await session.execute(delete(Registration).where(Registration.ends_at < now()))
        taken = (await session.scalars(select(Account.id).where(Account.contact == contact))).first() is not None
        session.add(
            Registration(
                id=id,
                contact=contact,
                name=name,
                kind=kind,
                department=department,
                head=head,
                password=kept,
                code="" if taken else _digest(id, code),
                ends_at=now() + CODE_LASTS_S,
            )
        )
    if taken:
        text = "Somebody, perhaps you, wanted an account here. You have one already: log in."
    else:
        text = f"Your code is {code}. It is good for half an hour."
    await jobs.write_to(contact, "Your account at the portal", text, id=f"register-{id}")
    return page(request, "code.html", registration=id, contact=contact)


@post("/register/code", status_code=200)
async def enter_code(request: Asked) -> Response[Any]:
    """Make the account of a registration whose code is right."""
    services, sessions = services_of(request.app.state), sessions_of(request.app.state)
    id, code = await field_of(request, "registration", 32), await field_of(request, "code", 6, 6)
    async with services.writing() as session:
        await session.execute(  # counted before the look, so that tries at once are counted too
            update(Registration).where(Registration.id == id).values(tries=Registration.tries + 1)
        )
        found = await session.get(Registration, id)
    if found is None or found.ends_at < now() or found.tries > TRIES_MAX:
        raise ClientException("The code is not good any more. Register again.")
    if not hmac.compare_digest(found.code, _digest(id, code)):
        return page(request, "code.html", 400, registration=id, contact=found.contact, wrong=True)
    account = Account(
        id=new_id(),
        contact=found.contact,
        name=found.name,
        kind=found.kind,
        department=found.department,
        head=found.head,
        password=found.password,
        state="waiting" if found.kind == "department" else "active",
    )
    try:
        async with services.writing() as session:
            await session.execute(delete(Registration).where(Registration.id == id))
            session.add(account)
    except IntegrityError:  # the contact got an account meanwhile
        raise ClientException("The code is not good any more. Register again.") from None
    await services.inbox.follow("all", account.id)
    cookie, _ = await sessions.begin(account.id, _address(request))
    return logged_in(request, cookie)


@get("/login")
async def login_page(request: Asked, ended: str = "") -> Response[str]:
    """The form of a login."""
    return page(request, "login.html", ended=ended or visitor_of(request).ended)


@post("/login", status_code=200)
async def login(request: Asked) -> Response[Any]:
    """Begin a session; it ends the account's others."""
    services, sessions = services_of(request.app.state), sessions_of(request.app.state)
    contact, address = await _contact(request), _address(request)
    password = await field_of(request, "password", passwords.LONGEST, 1)
    failures = _digest(contact, address)
    if await _count(services, failures, FAILURES_LAST_S) > TRIES_MAX:
        raise TooManyRequestsException("Too many tries. Wait for a quarter of an hour.")
    async with services.reading() as session:
        account = (await session.scalars(select(Account).where(Account.contact == contact))).first()
    if not await passwords.matches(account.password if account else None, password) or account is None:
        return page(request, "login.html", 400, wrong=True, contact=contact)
    async with services.writing() as session:
        await session.execute(delete(Count).where(Count.key == failures))
    cookie, is_new = await sessions.begin(account.id, address)
    if is_new:
        await services.inbox.notify(account.id, "login", {"text": f"A login from {address}", "path": "/"})
    return logged_in(request, cookie)


@post("/logout", status_code=200)
async def logout(request: Asked) -> Response[Any]:
    """End the session."""
    if visitor_of(request).digest:
        await sessions_of(request.app.state).end(visitor_of(request).digest)
    return logged_out(request)


@get("/token")
async def token(request: Asked) -> dict[str, str]:
    """A token with which the page reads its rooms at the edge: what it may read, and nothing else."""
    settings, visitor = services_of(request.app.state).settings, visitor_of(request)
    return {"token": jwt.encode(claims(visitor, int(time.time())), settings.token_secret(), algorithm="HS256")}


def claims(visitor: Visitor, now_s: int) -> dict[str, Any]:
    """The claims of a token for the edge. A visitor without a session is counted but gets no direct messages."""
    read = ["read", "history"]
    cap = {"front": read, "share:*": read, "likes:share:*": read, "audience:all": ["read"]}
    if visitor.member is None:
        return {"sub": f"visitor:{visitor.token[:24]}", "exp": now_s + TOKEN_S, "cap": cap}
    cap[f"session:{visitor.digest}"] = read
    return {"sub": str(visitor.member.id), "exp": now_s + TOKEN_S, "cap": cap}


async def _count(services: Services, key: str, lasts_s: float) -> int:
    """Count a try before it is looked at, so that tries at once are counted too."""
    while True:
        with contextlib.suppress(IntegrityError):  # another try began the count
            async with services.writing() as session:
                await session.execute(delete(Count).where(Count.until < now()))
                one_more = update(Count).where(Count.key == key).values(count=Count.count + 1)
                if cast(CursorResult[Any], await session.execute(one_more)).rowcount == 0:
                    session.add(Count(key=key, count=1, until=now() + lasts_s))
                    await session.flush()
                return cast(int, await session.scalar(select(Count.count).where(Count.key == key)))


async def _contact(request: Asked) -> str:
    """An e-mail address, or a phone number without blanks. Raises `ClientException`."""
    contact = (await field_of(request, "contact", 254, 3, "E-mail or phone")).lower()
    number = re.sub(r"[ ()./-]", "", contact)
    if PHONE.fullmatch(number):
        return number
    if not EMAIL.fullmatch(contact):
        raise ClientException("E-mail or phone: give an address as ann@example.org, or a number as +8613812345678.")
    return contact


def _address(request: Asked) -> str:
    return request.client.host if request.client else ""


def _digest(salt: str, text: str) -> str:
    return hashlib.sha256(f"{salt} {text}".encode()).hexdigest()


ROUTES: Final = [register_page, register, enter_code, login_page, login, logout, token]
