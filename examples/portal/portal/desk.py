"""The way of each request: who asks, whether a form is the portal's own, and how a page is answered.

Owns cookies, tokens of forms, headers and errors. Routes stand in the modules of their matter.
"""

import hmac
from datetime import UTC, datetime
from typing import Any, Final, cast
from urllib.parse import quote

from jinja2 import Environment, PackageLoader
from litestar import Request, Response
from litestar.datastructures import Cookie, MutableScopeHeaders, State
from litestar.exceptions import ClientException, HTTPException, NotFoundException, PermissionDeniedException
from litestar.response import Redirect
from litestar.types import Message, Scope
from markupsafe import Markup

import muster

from .accounts.sessions import COOKIE, FORM_COOKIE, LASTS_S, Member, Sessions, Visitor
from .services import Services, seen
from .tables import now

Asked = Request[Any, Any, State]
HTML: Final = "text/html; charset=utf-8"
FORM_BYTES_MAX: Final = 64 << 10
SEEN_COOKIE: Final = "portal_seen"
SEEN_CHARS_MAX: Final = 200
SEEN_S: Final = 60
"""A replica that lags more than a few seconds is left out, so a position may be forgotten after that."""
FIELDS: Final = ("agriculture", "energy", "health", "research", "seeds")


def _when(seconds: float) -> Markup:
    """A time, which the page shows in the zone of its reader."""
    said = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}">{}</time>').format(said.isoformat(), said.strftime("%d %b %Y, %H:%M UTC"))


templates = Environment(
    loader=PackageLoader("portal"), autoescape=True, trim_blocks=True, lstrip_blocks=True, enable_async=False
)
templates.globals["FIELDS"] = FIELDS
templates.filters["when"] = _when


class LoginNeeded(HTTPException):
    """The page is for members."""

    status_code = 401


def services_of(state: State) -> Services:
    """The connections of this process."""
    return cast(Services, state.services)


def sessions_of(state: State) -> Sessions:
    """The sessions."""
    return cast(Sessions, state.sessions)


def visitor_of(request: Asked) -> Visitor:
    """The sender of a request."""
    return cast(Visitor, request.state.visitor)


def member_of(request: Asked) -> Member:
    """The member who sent it. Raises `LoginNeeded`."""
    member = visitor_of(request).member
    if member is None:
        raise LoginNeeded
    return member


def writer_of(request: Asked) -> Member:
    """The same, checked by staff. Raises `LoginNeeded`, `PermissionDeniedException`."""
    member = member_of(request)
    if not member.may_write:
        raise PermissionDeniedException("Staff has not checked this account yet. You can read until then.")
    return member


def staff_of(request: Asked) -> Member:
    """The same, of the staff; for others the page is not there."""
    member = member_of(request)
    if not member.staff:
        raise NotFoundException
    return member


async def enter(request: Asked) -> Response[Any] | None:
    """Before each request: find its sender; refuse a change that no page of ours asked for."""
    visitor = await sessions_of(request.app.state).visitor(
        request.cookies.get(COOKIE, ""), request.cookies.get(FORM_COOKIE, "")
    )
    request.state.visitor = visitor
    if services_of(request.app.state).replicas:
        request.state.seen = request.cookies.get(SEEN_COOKIE, "")[:SEEN_CHARS_MAX]
        seen.set(request.state.seen)
    else:
        seen.set("")
    if request.method not in {"GET", "HEAD"}:
        await _check_form(request, visitor)
    return None


async def leave(message: Message, scope: Scope) -> None:
    """Before each answer: a browser keeps how far its reader has seen the database, so that replicas never show less."""
    before = scope.get("state", {}).get("seen")
    if message["type"] == "http.response.start" and before is not None and seen.get() != before:
        cookie = Cookie(key=SEEN_COOKIE, value=seen.get(), httponly=True, samesite="lax", max_age=SEEN_S)
        MutableScopeHeaders.from_message(message).add("set-cookie", cookie.to_header(header=""))


async def _check_form(request: Asked, visitor: Visitor) -> None:
    """Raises `PermissionDeniedException` for a form of another site, or of another session."""
    origins = services_of(request.app.state).settings.origins
    if request.headers.get("origin", origins[0]) not in origins:
        raise PermissionDeniedException("The form was sent by another site.")
    form = await request.form()
    shown = request.headers.get("x-csrf-token") or str(form.get("csrf", ""))
    if not hmac.compare_digest(shown.encode(), visitor.token.encode()):
        if visitor.ended == "elsewhere":
            raise LoginNeeded
        raise PermissionDeniedException("The form is too old. Load the page again, then send it again.")


async def field_of(request: Asked, name: str, most: int, least: int = 1, label: str = "") -> str:
    """A field of the form, without blanks around it. Raises `ClientException` with what to mend."""
    value = str((await request.form()).get(name, "")).replace("\r\n", "\n").strip()
    if not least <= len(value) <= most:
        raise ClientException(f"{label or name.capitalize()}: {len(value)} characters; it takes {least} to {most}.")
    if any(ord(each) < 32 and each not in "\n\t" for each in value):
        raise ClientException(f"{label or name.capitalize()}: it has control characters; remove them.")
    return value


def is_fragment(request: Asked) -> bool:
    """Return whether htmx sent the request; it puts the answer into the open page."""
    return request.headers.get("hx-request") == "true"


def rendered(name: str, **context: Any) -> str:
    """A template as text."""
    return templates.get_template(name).render(**context)


def page(request: Asked, name: str, status: int = 200, **context: Any) -> Response[str]:
    """A whole page, with what each has: navigation, token, the way to the edge."""
    visitor = visitor_of(request)
    settings = services_of(request.app.state).settings
    shown = rendered(name, visitor=visitor, me=visitor.member, edge=settings.edge_url, **context)
    answer = Response(shown, status_code=status, media_type=HTML, headers={"cache-control": "no-store"})
    if visitor.seed:
        answer.set_cookie(_cookie(settings.origins, FORM_COOKIE, visitor.seed))
    if visitor.ended:
        answer.delete_cookie(COOKIE)
    return answer


def fragment(request: Asked, name: str, **context: Any) -> Response[str]:
    """A part of a page."""
    visitor = visitor_of(request)
    shown = rendered(name, visitor=visitor, me=visitor.member, **context)
    return Response(shown, media_type=HTML, headers={"cache-control": "no-store"})


def go(request: Asked, path: str) -> Response[Any]:
    """After a form: on to a page."""
    if is_fragment(request):
        return Response("", media_type=HTML, headers={"hx-redirect": path})
    return Redirect(path, status_code=303)


def logged_in(request: Asked, id: str) -> Response[Any]:
    """On to the front page with a session."""
    answer = go(request, "/")
    answer.set_cookie(_cookie(services_of(request.app.state).settings.origins, COOKIE, id))
    return answer


def logged_out(request: Asked) -> Response[Any]:
    """On to the front page without one."""
    answer = go(request, "/")
    answer.delete_cookie(COOKIE)
    return answer


def _cookie(origins: tuple[str, ...], name: str, value: str) -> Cookie:
    secure = origins[0].startswith("https:")
    return Cookie(key=name, value=value, httponly=True, samesite="lax", secure=secure, max_age=LASTS_S)


def failed(request: Asked, error: Exception) -> Response[Any]:
    """An error that a visitor can understand."""
    if not isinstance(error, HTTPException):
        request.logger.exception("a request failed")
        status = 503 if isinstance(error, muster.Unavailable) else 500
        text = "The portal failed. Try again in a moment."
    else:
        status, text = error.status_code, error.detail
        if isinstance(error, NotFoundException):
            text = "There is nothing here."
    if not hasattr(request.state, "visitor"):
        return Response(text, status_code=status, media_type="text/plain")
    if isinstance(error, LoginNeeded):
        ended = visitor_of(request).ended
        return go(request, f"/login?next={quote(request.url.path)}" + (f"&ended={ended}" if ended else ""))
    if is_fragment(request):
        return Response(text, status_code=status, media_type="text/plain")
    return page(request, "error.html", status, text=text, at=now())
