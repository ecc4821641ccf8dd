"""A function whose results are cached: its keys and its calls. Owns the path of a hit, which must be cheap."""

import inspect
import re
import string
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from ..errors import Invalid
from .reading import Plan

if TYPE_CHECKING:
    from .cache import Cache

P = ParamSpec("P")
V = TypeVar("V")

KEY_BYTES_MAX: Final = 512
_BAD: Final = re.compile(r"[\x00-\x1f\x7f]")


def checked(key: str) -> str:
    """Return the key if Redis and messages accept it. Raises `Invalid`."""
    if not key or len(key.encode()) > KEY_BYTES_MAX or _BAD.search(key):
        raise Invalid(f"invalid key {key[:80]!r} (expected 1 to {KEY_BYTES_MAX} bytes without control characters)")
    return key


class Keys:
    """The keys of a function: a template over its arguments. Raises `Invalid` if the template names an unknown
    argument."""

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters.values())
        fixed = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
        if any(each.kind in fixed for each in parameters):
            raise Invalid(
                f"{function.__name__} takes *args or **kwargs, so {template!r} makes no unique key; name the arguments"
            )
        self._names = [each.name for each in parameters]
        self.count = len(parameters)
        parts = []
        for text, field, form, conversion in string.Formatter().parse(template):
            parts.append(text.replace("{", "{{").replace("}", "}}"))
            if field is None:
                continue
            name, rest = re.fullmatch(r"(\w*)(.*)", field).groups()  # type: ignore[union-attr]
            if name not in self._names:
                raise Invalid(f"{template!r} names {name or 'nothing'!r}, but {function.__name__} has no such argument")
            shown = (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            parts.append(f"{{{self._names.index(name)}{rest}{shown}}}")
        self.of = "".join(parts).format
        """Formats the key from positional arguments."""

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The key of any call of the function. Raises `TypeError` as the call itself does."""
        found = self._signature.bind(*args, **kwargs)
        found.apply_defaults()
        return self.of(*(found.arguments[name] for name in self._names))


class Cached(Generic[P, V]):
    """A function whose results are cached. It is called like the original."""

    def __init__(self, cache: "Cache", template: str, function: Callable[P, Awaitable[V]], plan: Plan) -> None:
        self.__name__ = getattr(function, "__name__", template)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._cache, self._plan, self._keys = cache, plan, Keys(template, function)
        self._of, self._count = self._keys.of, self._keys.count
        self._near, self._hears, self._figures = cache._near, cache._hears, cache._figures

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """Return the value from level 1, level 2, or one load for all processes."""
        key = self._of(*args) if len(args) == self._count and not kwargs else self._keys.bound(args, kwargs)
        kept = self._near.get(key)
        if kept is not None:
            now = monotonic()
            if now < kept.until and now < self._hears.until:
                self._figures.near_hits += 1
                if now >= kept.early:
                    self._cache._open().early(self._plan, key, kept, (args, kwargs))
                return kept.value  # type: ignore[no-any-return]
        return await self._cache._open().read(self._plan, checked(key), (args, kwargs))  # type: ignore[no-any-return]

    async def strict(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """Return the value without level 1: it reflects every drop that has returned, in any process."""
        key = checked(self._keys.bound(args, kwargs))
        return await self._cache._open().strict(self._plan, key, (args, kwargs))  # type: ignore[no-any-return]

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of this call, for `drop` and `changing`."""
        return checked(self._keys.bound(args, kwargs))

    async def drop(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Drop the value that this call returns."""
        await self._cache.drop(self.key(*args, **kwargs))
