"""Selectors of clients: `province=520000 and carrier in (1, 2) and not tag=mobile`, or the mark `CN_520000_522200_1`.

Owns the language and its normal form. It must not know which clients exist. Two texts that differ only in order, brackets
or a mark have one normal form, which is the name of a deck.

    selector = all {"or" all}           all  = one {"and" one}         one = "not" one | "(" selector ")" | term | mark
    term = attribute ("=" | "!=") value | attribute ["not"] "in" "(" value {"," value} ")"
    mark = country_province_city_carrier | device_country_province_city_carrier
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

ATTRIBUTES: Final = ("device", "country", "province", "city", "carrier", "version", "tag")
COUNTED: Final = ("country", "province", "city", "carrier", "version", "tag")
"""Attributes by which clients are counted: not by device, of which each client has its own."""
MARK: Final = ("device", "country", "province", "city", "carrier")

LENGTH_MAX: Final = 4096  # limit of characters
DEPTH_MAX: Final = 32  # limit of nested brackets and nots; also bounds the recursion of code that walks a selector
TERMS_MAX: Final = 256  # limit of values: one bitmap look-up each
VALUE_MAX: Final = 64  # limit of characters of a value

TOKEN: Final = re.compile(r"""\s*(?:(?P<word>[A-Za-z0-9._:+/-]+)|"(?P<text>[^"]*)"|(?P<sign>!=|[=(),]))""")
BARE: Final = re.compile(r"[A-Za-z0-9._:+/-]+")
KEYWORDS: Final = frozenset({"and", "or", "not", "in"})


class SelectorError(Exception):
    """A selector cannot be parsed. The text is one line; `position` counts characters from 1."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"selector: {problem} at character {position}")
        self.position = position


class In(msgspec.Struct, frozen=True, tag="in"):
    """One of the values of `attribute` is one of `values`."""

    attribute: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{self.attribute}={_printed(self.values[0])}"
        return f"{self.attribute} in ({', '.join(map(_printed, self.values))})"


class Not(msgspec.Struct, frozen=True, tag="not"):
    part: "Selector"

    def __str__(self) -> str:
        return f"not {_bracketed(self.part)}"


class And(msgspec.Struct, frozen=True, tag="and"):
    """Matches all of `parts`; without parts it matches every client."""

    parts: tuple["Selector", ...]

    def __str__(self) -> str:
        return " and ".join(map(_bracketed, self.parts)) or "everyone"


class Or(msgspec.Struct, frozen=True, tag="or"):
    parts: tuple["Selector", ...]

    def __str__(self) -> str:
        return " or ".join(map(_bracketed, self.parts))


Selector = In | Not | And | Or

EVERYONE: Final = And(())


def parse(text: str) -> Selector:
    """Parse a text to its normal form; blank text gives `EVERYONE`. Raises `SelectorError`."""
    if len(text) > LENGTH_MAX:
        raise SelectorError(f"too long: {len(text)} characters (limit {LENGTH_MAX}); split the task,", LENGTH_MAX + 1)
    if not text.strip() or text.strip() == str(EVERYONE):
        return EVERYONE
    return _Reader(text).whole()


def matches(selector: Selector, attributes: Mapping[str, Sequence[str]]) -> bool:
    """Whether a client with these attributes matches."""
    match selector:
        case In(attribute, values):
            return not set(values).isdisjoint(attributes.get(attribute, ()))
        case Not(part):
            return not matches(part, attributes)
        case And(parts):
            return all(matches(part, attributes) for part in parts)
        case Or(parts):
            return any(matches(part, attributes) for part in parts)


class _Token(msgspec.Struct, frozen=True):
    kind: str
    """`word`, `text`, `sign`, or `end`."""
    text: str
    position: int

    @property
    def keyword(self) -> str:
        lower = self.text.lower()
        return lower if self.kind == "word" and lower in KEYWORDS else ""

    @property
    def shown(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


class _Reader:
    """Recursive descent; `depth` and `terms` count the brackets and values read so far."""

    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens(text))
        self.at = 0
        self.depth = 0
        self.terms = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def whole(self) -> Selector:
        found = self.selector()
        if self.token.kind != "end":
            raise SelectorError(f"'and' or 'or' expected, not {self.token.shown}", self.token.position)
        return found

    def selector(self) -> Selector:
        parts = [self.all()]
        while self.token.keyword == "or":
            self.at += 1
            parts.append(self.all())
        return _joined(Or, parts)

    def all(self) -> Selector:
        parts = [self.one()]
        while self.token.keyword == "and":
            self.at += 1
            parts.append(self.one())
        return _joined(And, parts)

    def one(self) -> Selector:
        token = self.token
        if token.keyword == "not" or (token.text == "(" and token.kind == "sign"):
            self.depth += 1
            if self.depth > DEPTH_MAX:
                raise SelectorError(f"too many nested brackets and nots (limit {DEPTH_MAX})", token.position)
            self.at += 1
            found = self.negated() if token.keyword else self.bracketed()
            self.depth -= 1
            return found
        if token.kind != "word" or token.keyword:
            raise SelectorError(f"attribute, mark, 'not' or '(' expected, not {token.shown}", token.position)
        self.at += 1
        following = self.token
        if (following.text in {"=", "!="} and following.kind == "sign") or following.keyword in {"in", "not"}:
            return self.term(token)
        if "_" in token.text:
            return self.mark(token)
        raise SelectorError(f"'=', '!=' or 'in' expected, not {following.shown}", following.position)

    def mark(self, token: _Token) -> Selector:
        values = token.text.split("_")
        if len(values) not in {len(MARK) - 1, len(MARK)} or not all(values):
            raise SelectorError(
                f"invalid mark {token.text!r} (expected [device_]country_province_city_carrier)", token.position
            )
        self.terms += len(values)
        if self.terms > TERMS_MAX:
            raise SelectorError(f"too many values (limit {TERMS_MAX})", token.position)
        return _joined(And, [In(name, (value,)) for name, value in zip(MARK[-len(values) :], values, strict=True)])

    def negated(self) -> Selector:
        part = self.one()
        return part.part if isinstance(part, Not) else Not(part)

    def bracketed(self) -> Selector:
        found = self.selector()
        self.sign(")")
        return found

    def term(self, attribute: _Token) -> Selector:
        name = attribute.text.lower()
        if name not in ATTRIBUTES:
            raise SelectorError(
                f"unknown attribute {attribute.text!r} (known: {', '.join(ATTRIBUTES)})", attribute.position
            )
        token = self.token
        self.at += 1
        if token.kind == "sign":
            found = In(name, (self.value(),))
            return Not(found) if token.text == "!=" else found
        negated = token.keyword == "not"
        if negated:
            if self.token.keyword != "in":
                raise SelectorError(f"'in' expected, not {self.token.shown}", self.token.position)
            self.at += 1
        self.sign("(")
        values = [self.value()]
        while self.token.text == "," and self.token.kind == "sign":
            self.at += 1
            values.append(self.value())
        self.sign(")")
        found = In(name, tuple(sorted(set(values))))
        return Not(found) if negated else found

    def value(self) -> str:
        token = self.token
        if token.kind not in {"word", "text"} or not token.text:
            raise SelectorError(f"value expected, not {token.shown}", token.position)
        if len(token.text) > VALUE_MAX:
            raise SelectorError(f"value too long (limit {VALUE_MAX} characters)", token.position)
        self.terms += 1
        if self.terms > TERMS_MAX:
            raise SelectorError(f"too many values (limit {TERMS_MAX})", token.position)
        self.at += 1
        return token.text

    def sign(self, wanted: str) -> None:
        if self.token.kind != "sign" or self.token.text != wanted:
            raise SelectorError(f"{wanted!r} expected, not {self.token.shown}", self.token.position)
        self.at += 1


def _tokens(text: str) -> Iterable[_Token]:
    at = 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        start = at + len(text[at:]) - len(text[at:].lstrip())
        if match is None:
            raise SelectorError(f"unexpected character {text[start]!r}", start + 1)
        kind = str(match.lastgroup)
        yield _Token(kind, match.group(kind), start + 1)
        at = match.end()
    yield _Token("end", "", len(text) + 1)


def _joined(kind: type[And] | type[Or], parts: Sequence[Selector]) -> Selector:
    """Join the parts: flat, sorted, without duplicates; a single part is returned as it is."""
    flat: dict[str, Selector] = {}
    for part in parts:
        for each in part.parts if isinstance(part, kind) else (part,):
            flat[str(each)] = each
    if len(flat) == 1:
        return next(iter(flat.values()))
    return kind(tuple(flat[text] for text in sorted(flat)))


def _bracketed(part: Selector) -> str:
    return f"({part})" if isinstance(part, And | Or) else str(part)


def _printed(value: str) -> str:
    return value if BARE.fullmatch(value) and value.lower() not in KEYWORDS else f'"{value}"'
