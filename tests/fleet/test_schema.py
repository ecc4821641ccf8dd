"""Topics and payloads: what is written is read back, strangers' bytes are refused by reason, the document says the same."""

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_server.systems.fleet import schema
from muster_server.systems.fleet.schema import Beat, Bye, Hello, Message, Notice, Order, Receipt, Result, SchemaError
from tests.documents import ROOT

DOCUMENT = (ROOT / "docs" / "fleet.md").read_text()

MESSAGES: list[tuple[schema.Up, Message]] = [
    ("hello", Hello(5, 1, {"country": ["CN"], "tag": ["a", "b"]})),
    ("beat", Beat(5)),
    ("bye", Bye(5)),
    ("receipt", Receipt("ping@1", 5)),
    ("result", Result("ping@1", 5, True, msgspec.Raw(b'{"ms":3.5}'))),
    ("result", Result("ping@1", 5, False, error="timed out")),
]


@pytest.mark.parametrize(("kind", "message"), MESSAGES)
def test_what_a_client_writes_is_read_back(kind: schema.Up, message: Message) -> None:
    client, found = schema.read(schema.up("probe_1-a", kind), schema.written(message))
    assert client == "probe_1-a"
    assert msgspec.json.encode(found) == msgspec.json.encode(message)
    assert type(found) is type(message)


def test_fields_that_are_added_later_are_passed_over() -> None:
    _, found = schema.read(schema.up("a", "beat"), b'{"epoch":7,"battery":80}')
    assert found == Beat(7)


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        ("fleet/1/a/up/dance", b"{}", "topic"),
        ("fleet/2/a/up/beat", b'{"epoch":1}', "topic"),
        ("fleet/1/a/down/beat", b'{"epoch":1}', "topic"),
        ("fleet/1/a/b/up/beat", b'{"epoch":1}', "topic"),
        ("fleet/1/+/up/beat", b'{"epoch":1}', "topic"),
        ("fleet/1/a\n/up/beat", b'{"epoch":1}', "topic"),
        ("fleet/1//up/beat", b'{"epoch":1}', "topic"),
        ("", b"", "topic"),
        ("fleet/1/a/up/beat", b"", "form"),
        ("fleet/1/a/up/beat", b"\xff\xfe", "form"),
        ("fleet/1/a/up/beat", b'{"epoch":"1"}', "form"),
        ("fleet/1/a/up/beat", b'{"epoch":1e400}', "form"),
        ("fleet/1/a/up/result", b'{"run":"x@1","epoch":1,"ok":true,"value":' + b"[" * 60_000, "form"),
        ("fleet/1/a/up/result", b'{"run":"' + b"x" * 70_000 + b'"}', "size"),
    ],
)
def test_what_is_no_message_is_refused_by_reason(topic: str, payload: bytes, reason: str) -> None:
    with pytest.raises(SchemaError) as told:
        schema.read(topic, payload)
    assert told.value.reason == reason
    assert len(str(told.value)) < 400


@given(st.sampled_from(sorted(schema.UP)), st.binary(max_size=200))
def test_no_bytes_do_anything_else_than_be_refused(kind: str, payload: bytes) -> None:
    refused = False
    try:
        schema.read(f"fleet/1/a/up/{kind}", payload)
    except SchemaError as error:
        refused = error.reason == "form"
    assert refused or payload.strip().startswith(b"{")


def test_an_order_that_is_too_large_is_not_sent() -> None:
    order = Order("ping@1", "ping", "example.org", 5_000, 30_000, {"data": "x" * 20_000})
    with pytest.raises(SchemaError, match=r"run ping@1: order too long: .* bytes"):
        schema.written(order)


@given(st.text(min_size=1, max_size=60), st.integers(0, 10**9))
def test_a_runs_name_is_its_task_and_minute(task: str, minute: int) -> None:
    assert schema.run_of(schema.run_name(task, minute)) == (task, minute)


@pytest.mark.parametrize("name", ["", "ping", "@5", "ping@", "ping@-1", "ping@1x", "ping@²", "x" * 100 + "@1"])
def test_what_is_no_run_is_refused(name: str) -> None:
    with pytest.raises(SchemaError):
        schema.run_of(name)


def test_the_document_names_every_topic_field_and_quality() -> None:
    messages: dict[str, type[msgspec.Struct]] = {**schema.UP, "task": Order, "notice": Notice}
    for kind, message in messages.items():
        way = "up" if kind in schema.UP else "down"
        row = re.search(rf"^\| `fleet/1/\{{name\}}/{way}/{kind}` \| (\d) \| (.*?) \|", DOCUMENT, re.MULTILINE)
        assert row is not None, kind
        assert int(row[1]) == schema.QOS[kind]  # type: ignore[index]
        assert re.findall(r"`(\w+)`", row[2]) == [field.name for field in msgspec.structs.fields(message)], kind
    assert f"{schema.UP_BYTES_MAX:,} bytes" in DOCUMENT
    assert f"{schema.TASK_BYTES_MAX:,} bytes" in DOCUMENT


def test_the_documents_examples_are_messages() -> None:
    examples = re.findall(r"^(fleet/1/\S+) (\{.*\})$", DOCUMENT, re.MULTILINE)
    assert len(examples) >= 5
    for topic, payload in examples:
        json.loads(payload)
        if "/up/" in topic:
            schema.read(topic, payload.encode())
        else:
            msgspec.json.decode(payload, type={"task": Order, "notice": Notice}[topic.rsplit("/", 1)[1]], strict=True)


@pytest.mark.parametrize("epoch", ["-1", "9223372036854775808", "99999999999999999999999", "1.5", "true"])
@pytest.mark.parametrize("kind", ["hello", "beat", "bye", "receipt", "result"])
def test_an_epoch_has_63_bits_as_every_store_takes_it(kind: str, epoch: str) -> None:
    said = f'{{"epoch": {epoch}, "version": 1, "attributes": {{}}, "run": "a@1", "ok": true}}'
    with pytest.raises(SchemaError):
        schema.read(f"fleet/1/c1/up/{kind}", said.encode())
