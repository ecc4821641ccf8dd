"""The paths of Centrifugo's server API: `POST /api/METHOD`, a body in JSON, status 200 also for an error of the method."""

from typing import Any, Final

import msgspec
from litestar import MediaType, Response, Router, post
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler

from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body
from muster_server.systems.http.described import problems, success
from muster_server.systems.http.face import AnyRequest
from muster_server.systems.rooms.http.centrifugo import shapes
from muster_server.systems.rooms.http.centrifugo.methods import METHODS, MISSING, Methods
from muster_server.systems.rooms.http.service import Service

TEXT: Final = "The result of the method, or its error"


def router(service: Service) -> Router:
    """The routes of all methods."""
    made = Methods(service)

    def methods(caller: NamedDependency[Caller]) -> Methods:
        return made

    handlers = [_handler(method) for method in (*METHODS, *MISSING)]
    return Router(
        "/api",
        route_handlers=handlers,
        dependencies={"methods": Provide(methods, sync_to_thread=False)},
        tags=["Centrifugo's server API"],
    )


def _handler(method: str) -> HTTPRouteHandler:
    body = Body((METHODS[method].shape,)) if method in METHODS else Body((dict[str, Any],))
    about = (METHODS[method].do.__doc__ or "") if method in METHODS else f"Answers error 108: {MISSING[method]}."

    @post(
        f"/{method}",
        status_code=200,
        name=f"centrifugo-{method}",
        operation_id=f"Centrifugo{method.title().replace('_', '')}",
        description=about,
        opt={"body": body},
        responses={200: success(shapes.Reply, TEXT), **problems(401, 429)},
    )
    async def handler(
        request: AnyRequest, caller: NamedDependency[Caller], methods: NamedDependency[Methods]
    ) -> Response[bytes]:
        said = await methods.reply(caller, method, await request.body())
        # A batch is answered without the member `result`, as by Centrifugo.
        answer = said.result if method == "batch" and said.error is None else said
        return Response(msgspec.json.encode(answer) + b"\n", media_type=MediaType.JSON)

    return handler
