"""Keys of functions, and what a decorated function keeps of the one below."""

import inspect
from typing import Any

import pytest

from muster import Invalid
from muster.cache import Cache
from muster.cache.functions import Keys
from muster.cache.hearing import read


class User:
    def __init__(self, id: int) -> None:
        self.id = id


def made(template: str, *args: Any, **kwargs: Any) -> str:
    async def function(user: User | int, page: int = 1, *, order: str = "new") -> None: ...

    return Keys(template, function).bound(args, kwargs)


def test_a_key_has_arguments_however_they_are_given() -> None:
    assert made("page:{user}:{page}:{order}", 7) == "page:7:1:new"
    assert made("page:{user}:{page}:{order}", 7, 2, order="old") == "page:7:2:old"
    assert made("page:{page}:{user}", page=3, user=7) == "page:3:7"
    assert made("user:{user.id}:{page:04d}:{order!r}", User(8)) == "user:8:0001:'new'"
    assert made("{{all}}", 1) == "{all}"


def test_a_wrong_call_fails_as_the_function_would() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'user'"):
        made("{user}")


@pytest.mark.parametrize("template", ["share:{}", "share:{no}", "share:{0}"])
def test_a_template_that_names_no_argument_is_refused(template: str) -> None:
    with pytest.raises(Invalid, match="function has no such argument"):
        made(template, 7)


def test_a_function_of_any_arguments_is_refused() -> None:
    async def function(*ids: int) -> None: ...

    with pytest.raises(Invalid, match="name the arguments"):
        Keys("{ids}", function)


async def test_a_key_that_is_empty_too_long_or_has_control_characters_is_refused(cache: Cache) -> None:
    @cache.cached("{text}", fresh_s=1)
    async def page(text: str) -> str:
        return text

    for text in ("", "x" * 513, "a\nb", "a\0"):
        with pytest.raises(Invalid, match="invalid key"):
            await page(text)
        with pytest.raises(Invalid, match="invalid key"):
            await cache.drop(text)
    assert await page("ä}{ü") == "ä}{ü"
    await page.drop("ä}{ü")
    for keys in ([], [f"k{number}" for number in range(1_001)]):
        with pytest.raises(Invalid, match="expected 1 to 1000"):
            await cache.drop(*keys)


async def test_a_function_is_called_as_before_and_keeps_its_name_and_text(cache: Cache) -> None:
    @cache.cached("share:{id}", fresh_s=1)
    async def share(id: int) -> int:
        """A share."""
        return id

    assert (share.__name__, share.__doc__) == ("share", "A share.")
    assert await share.__wrapped__(3) == 3
    assert list(inspect.signature(share).parameters) == ["id"]
    assert share.key(7) == "share:7"


def test_a_message_that_is_no_drop_is_refused() -> None:
    assert read(b'1700000000000 ["w","share:7"]') == ("w", ["share:7"], 1_700_000_000_000.0)
    for message in (b"", b"x", b'x ["w"]', b"1 {}", b"1 [1]", b"1 []", b'1 "w"'):
        with pytest.raises(ValueError):
            read(message)
