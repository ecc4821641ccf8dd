"""Rights for the targets that messages name themselves: those of the direct way."""

from collections.abc import Sequence

import pytest

from muster_server.systems.http.keys import covers
from muster_server.systems.http.problems import Problem
from muster_server.systems.messages.http.routes import need_ways


class Caller:
    """A key with scopes."""

    def __init__(self, *scopes: str) -> None:
        self.scopes: Sequence[str] = scopes

    def need(self, action: str, name: str) -> None:
        if not any(covers(scope, action, name) for scope in self.scopes):
            raise Problem("not_allowed", f"{action}:{name}")


@pytest.mark.parametrize(
    ("target", "scope"),
    [
        ("room:sports", "publish:sports"),
        ("room:sports:final", "publish:sports:*"),
        ("user:7", "unicast:7"),
        ("inbox:7", "notify:7"),
        ("kafka:orders", "target:kafka:orders"),
        ("https://shop.example/hook", "target:https://shop.example/*"),
        ("http://10.1.2.3/", "target:*"),
    ],
)
def test_a_target_needs_its_scope_and_no_other_will_do(target: str, scope: str) -> None:
    need_ways(Caller("send:orders", scope), target)  # type: ignore[arg-type]
    everything_else = ("publish:*", "unicast:*", "notify:*", "target:*", "send:*", "change:*", "show:*", "manage:*")
    others = [each for each in everything_else if each.partition(":")[0] != scope.partition(":")[0]]
    with pytest.raises(Problem) as caught:
        need_ways(Caller(*others), target)  # type: ignore[arg-type]
    assert caught.value.code == "not_allowed"


@pytest.mark.parametrize(
    ("target", "scope"),
    [
        ("room:other", "publish:sports"),
        ("user:70", "unicast:7"),
        ("https://shop.example.evil.example/", "target:https://shop.example/*"),
        ("kafka:orders2", "target:kafka:orders"),
    ],
)
def test_a_scope_reaches_no_other_target(target: str, scope: str) -> None:
    with pytest.raises(Problem):
        need_ways(Caller(scope), target)  # type: ignore[arg-type]


def test_a_check_back_needs_the_right_to_send_its_message() -> None:
    need_ways(Caller("send:orders"), "", "orders")  # type: ignore[arg-type]
    with pytest.raises(Problem):
        need_ways(Caller("send:checks"), "", "orders")  # type: ignore[arg-type]


def test_a_target_that_is_none_is_told_apart() -> None:
    with pytest.raises(Problem) as caught:
        need_ways(Caller("target:*"), "file:///etc/passwd")  # type: ignore[arg-type]
    assert caught.value.code == "bad_request"


def test_subscribers_need_the_right_to_send_to_each() -> None:
    need_ways(Caller("send:orders", "send:bills"), "topics:orders,bills")  # type: ignore[arg-type]
    with pytest.raises(Problem) as caught:
        need_ways(Caller("send:orders", "target:*", "manage:*"), "topics:orders,bills")  # type: ignore[arg-type]
    assert caught.value.code == "not_allowed"
