"""How the routes of all systems describe themselves for OpenAPI: answers, problems, and the key of a request.

Knows no route.
"""

from typing import Annotated, Any

from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter

from muster_server.systems.http.problems import CONTENT_TYPE

IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key", description="The same request with the same key gets the same answer", max_length=255
    ),
]


def success(shape: Any, text: str) -> ResponseSpec:
    """A good answer."""
    return ResponseSpec(shape, generate_examples=False, description=text)


def problems(*codes: int) -> dict[int, ResponseSpec]:
    """The answers that are problems, by their status."""
    problem = ResponseSpec(None, generate_examples=False, media_type=CONTENT_TYPE, description="A problem")
    return dict.fromkeys(codes, problem)
