"""The system of likes: one role, which speaks Redis's protocol."""

from typing import Any, Final

from plane.kind import Around, System
from plane.likes.kind import LIKES
from plane.likes.options import LikesOptions


def told(around: Around) -> dict[str, Any]:
    """What the routes need to be let in by a node."""
    options: LikesOptions = around.section("likes")
    return {
        "users_file": around.absolute(options.users_file),
        "tls_cert_file": around.absolute(options.tls_cert_file),
    }


SYSTEM: Final = System(
    name="likes",
    kinds=(LIKES,),
    commands="control.likes.words:add",
    check="control.likes.check:wrong",
    doctor="control.likes.doctor:examined",
    http="control.likes.http",
    http_settings="control.likes.system:told",
)
