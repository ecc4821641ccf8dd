"""`docs/http.md` and the description of the API say what is there, and the examples run as printed."""

import asyncio
import os
import re
import shutil
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from openapi_spec_validator import validate

import muster
import muster.testing
from muster_server.plane.systems import actions
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.http.problems import KINDS
from muster_server.systems.http.streams import RETRY_MS
from tests.documents import ROOT, cells, fenced, spans
from tests.http.conftest import Beside, Make
from tests.waiting import PATIENT_S

PAGE = (ROOT / "docs" / "http.md").read_text()
EXAMPLES = fenced(PAGE, "sh")
ALL = [f"{action}:*" for action in actions()]


async def schema(beside: Beside) -> dict[str, Any]:
    document: dict[str, Any] = (await beside.client().get("/openapi.json")).json()
    return document


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
async def test_the_examples_run_as_printed(make: Make, address: muster.testing.Instance) -> None:
    beside = await make()
    environment = {**os.environ, "KEY": beside.key(*ALL), "URL": beside.server.url, "NO_PROXY": "*"}
    said: list[str] = []
    async with muster.connect(address) as client, client.join("sports:final"):
        for example in EXAMPLES:
            script = example.replace("curl -s", "curl --fail-with-body -s")
            shell = await asyncio.create_subprocess_exec(
                "sh", "-ec", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment
            )
            out, _ = await asyncio.wait_for(shell.communicate(), PATIENT_S)
            assert shell.returncode == 0, f"{example}\n{out.decode()}"
            said.append(out.decode())
    one, batch, headed, once, last, stream, rest, pages = said
    assert re.fullmatch(r'\{"position":"\d+\.\d+\.\d+:1"\}\n', one)
    assert '"published":3,"failed":0' in batch
    assert "position" in headed
    assert "position" in once
    assert '"data":"kick-off"' in last
    assert stream.count("\ndata: ") == 6
    assert '"outcome":"delivered"' in rest
    assert '"next":null' in pages


def test_every_problem_has_its_row() -> None:
    rows = {row[0].strip("`"): row[1:3] for row in cells(PAGE, "code", "status", "retryable", "when")}
    answers = {True: "yes", False: "no"}
    assert rows == {code: [str(kind.status), answers[kind.retryable]] for code, kind in KINDS.items()}


def test_every_action_is_named_with_the_right_of_a_user() -> None:
    rows = list(cells(PAGE, "method", "path", "scope", "right of a user", "what"))
    said = {row[2].strip("`"): row[3] for row in rows if row[2] != "none"}
    named = {action.name: action.right or action.word or "none" for action in actions().values()}
    beside = {name: right for name, right in named.items() if name not in said}
    # `target`: a scope that a route needs beside its own; `console`: one that logs in to the console.
    assert (said | beside, beside) == (named, {"target": "none", "console": "none"})
    (listed,) = (item for item in PAGE.split("\n- ") if item.startswith("A scope is `ACTION:PATTERN`"))
    assert named.keys() <= spans(listed)


def test_every_limit_that_is_named_exists() -> None:
    named = {word for row in cells(PAGE, "key", "what") for word in spans(row[0])}
    assert named
    assert named <= set(HttpOptions.__struct_fields__)
    mentioned = {word for word in spans(PAGE) if re.fullmatch(r"[a-z]+_(s|max|rate|ms)(_max)?", word)}
    assert mentioned - set(HttpOptions.__struct_fields__) <= {"retry_ms", "per_s"}


def test_every_option_is_read_somewhere() -> None:
    sources = [*(ROOT / "systems" / "http").rglob("*.py"), *(ROOT / "systems" / "rooms").rglob("*.py")]
    text = "\n".join(file.read_text() for file in sources if file.name != "options.py")
    joint = {"bind"}  # the process that plugs it in resolves it
    unread = {name for name in HttpOptions.__struct_fields__ if not re.search(rf"options\.{name}\b", text)}
    assert unread == joint


async def test_the_description_is_openapi_and_has_each_route(make: Make) -> None:
    document = await schema(await make())
    validate(document)
    assert document["openapi"].startswith("3.1")
    every = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    described = {(method, path) for method, path in every if path.startswith("/api/v1/")}
    methods = {name for row in cells(PAGE, "method", "scope", "what differs from Centrifugo") for name in spans(row[0])}
    assert every - described == {("POST", f"/api/{name}") for name in methods}
    rows = cells(PAGE, "method", "path", "scope", "right of a user", "what")
    assert described == {
        (row[0], spans(row[1]).pop()) for row in rows if (row[2], row[3]) != ("none", "none") and "Accept" not in row[1]
    }
    assert {"key", "token"} == set(document["components"]["securitySchemes"])


async def test_each_answer_has_a_status_that_is_described(make: Make) -> None:
    """What any value of any parameter comes to: nothing undescribed, and never a defect of ours."""
    beside = await make(requests_rate=100_000)
    document, client = await schema(beside), beside.client(*ALL)
    values: Sequence[str] = [
        "",
        "0",
        "1",
        "-1",
        "1e9",
        "99999999999999999999",
        "nan",
        "true",
        "ü",
        "%00",
        "a,b",
        "[]",
        "'",
    ]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            known = {int(status) for status in operation["responses"]}
            for parameter in operation.get("parameters", []):
                for value in values:
                    answer = await _ask(client, method, path, parameter, value)
                    assert answer.status_code in known, (method, path, parameter["name"], value, answer.text)
                    assert answer.status_code != 500


async def _ask(
    client: httpx2.AsyncClient, method: str, path: str, parameter: dict[str, Any], value: str
) -> httpx2.Response:
    room, options = "sports:final", dict[str, Any]()
    if parameter["in"] == "query":
        options["params"] = {parameter["name"]: value, **({"wait": "0.05"} if "members" in path else {})}
    elif parameter["in"] == "header":
        options["headers"] = {parameter["name"]: value.encode()}
    else:
        room = httpx2.URL(path=f"/{value or '%20'}").raw_path.decode()[1:].replace("/", "%2F") or "x"
    body = b"x" if method == "post" else None
    for name in ("topic", "id", "verb"):
        path = path.replace(f"{{{name}}}", room if parameter["name"] == name else "cancel")
    return await client.request(method, path.replace("{room}", room), content=body, **options)


async def test_the_page_loads_nothing_from_elsewhere(make: Make) -> None:
    beside = await make()
    client = beside.client()
    page = await client.get("/docs")
    assert page.status_code == 200
    policy = dict(part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert "http" not in page.headers["content-security-policy"]
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) == 4
    for path in loaded:
        assert not re.match(r"(https?:)?//", path)
        asset = await client.get(f"/{path}")
        assert asset.status_code == 200
        if path.endswith(".css"):
            assert not re.search(r"url\((?!['\"]?data:)", asset.text)
            assert "@import" not in asset.text
    assert "://" not in (await client.get("/docs/page.js")).text
    assert (await client.get("/docs/../edge.py")).status_code == 404


async def test_the_page_can_be_shut(make: Make) -> None:
    client = (await make(docs=False)).client()
    for path in ("/docs", "/openapi.json", "/docs/page.js"):
        assert (await client.get(path)).status_code == 404


def test_reasons_of_goodbye_are_named() -> None:
    files = (ROOT / "systems" / "http" / "streams.py", ROOT / "systems" / "rooms" / "http" / "streams.py")
    said = {reason for file in files for reason in re.findall(r'return "([a-z]+)"', file.read_text())}
    assert said == {"draining", "revoked", "expired", "unavailable"}
    assert said <= spans(PAGE)
    assert RETRY_MS > 0
