"""Reads the names in PromQL: the metrics of an expression, their labels, and whether they are taken over a range.

No parser: tokens, with the few rules that tell a metric's name. Raises `ValueError` for what is certainly no PromQL.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<variable>\$(?:\w+|\{\w+\}))
    |(?P<number>\d+(?:\.\d+)?(?:ms|[smhdwy])?(?![\w.]))
    |(?P<name>[A-Za-z_][\w:]*)
    |(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){}\[\],:])""",
    re.VERBOSE,
)
LISTS: Final = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
WORDS: Final = frozenset({"and", "or", "unless", "bool", "offset"})
FUNCTIONS: Final = frozenset(
    {
        "absent",
        "sum",
        "max",
        "min",
        "avg",
        "count",
        "rate",
        "increase",
        "changes",
        "max_over_time",
        "time",
        "label_values",
        "histogram_quantile",
    }
)
OVER_A_RANGE: Final = frozenset({"rate", "increase", "changes", "max_over_time"})
CLOSED_BY: Final = {"(": ")", "{": "}", "[": "]"}
MATCHES: Final = frozenset({"=", "!=", "=~", "!~"})


@dataclass(frozen=True)
class Use:
    """A metric in an expression. `labels`: its matchers, by label; `function`: the function of its range."""

    metric: str
    labels: dict[str, str] = field(default_factory=dict)
    function: str | None = None


@dataclass(frozen=True)
class Names:
    """All names of an expression. `listed`: the labels of its `by (…)`, `on (…)` and their like."""

    uses: list[Use]
    listed: frozenset[str]


def tokens(expression: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each token, without spaces."""
    at = 0
    while at < len(expression):
        match = TOKEN.match(expression, at)
        if match is None:
            raise ValueError(f"{expression!r}: nothing of PromQL begins with {expression[at:][:10]!r}")
        assert match.lastgroup is not None
        if match.lastgroup != "space":
            yield match.lastgroup, match[0]
        at = match.end()


def names(expression: str) -> Names:
    """Collect the names of an expression."""
    found = [*tokens(expression), ("end", "")]
    uses: list[Use] = []
    listed: set[str] = set()
    open_: list[tuple[str, str]] = []
    """Brackets, each with the function before it."""
    at = 0
    while at < len(found) - 1:
        kind, text = found[at]
        after = found[at + 1][1]
        at += 1
        if text in CLOSED_BY:
            open_.append((text, ""))
        elif text in CLOSED_BY.values() and (not open_ or CLOSED_BY[open_.pop()[0]] != text):
            raise ValueError(f"{expression!r}: {text} closes nothing")
        if kind != "name" or text in WORDS:
            continue
        if text in LISTS:
            end = found.index(("sign", ")"), at)
            listed |= {text for kind, text in found[at:end] if kind == "name"}
            at = end + 1
        elif after == "(":
            if text not in FUNCTIONS:
                raise ValueError(f"{expression!r}: {text} is not a function that is used here")
            open_.append(("(", text))
            at += 1
        elif open_ and open_[-1] == ("(", "label_values") and uses:
            listed.add(text)
        elif text not in FUNCTIONS:  # `sum by (…) (…)`
            labels, at = _matchers(expression, found, at) if after == "{" else ({}, at)
            function = open_[-1][1] if open_ and open_[-1][1] in OVER_A_RANGE else None
            if (found[at][1] == "[") != (function is not None):
                raise ValueError(f"{expression!r}: {text} has a range without its function, or the other way round")
            uses.append(Use(text, labels, function))
    if open_:
        raise ValueError(f"{expression!r}: {open_[-1][0]} is not closed")
    return Names(uses, frozenset(listed))


def _matchers(expression: str, found: list[tuple[str, str]], at: int) -> tuple[dict[str, str], int]:
    """Return the content of the braces that begin at `at`, and the position after them."""
    labels: dict[str, str] = {}
    while found[at][1] != "}":
        (_, _), (name, label), (_, sign), (value, text) = found[at : at + 4]
        if name != "name" or sign not in MATCHES or value != "string":
            raise ValueError(f"{expression!r}: {label}{sign}{text} asks for no label")
        labels[label] = sign + text[1:-1]
        at += 4
    return labels, at + 1
