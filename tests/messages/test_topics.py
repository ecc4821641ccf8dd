"""Topics that are changed: other settings, and a secret that is replaced while both sign."""

from pathlib import Path

import msgspec
import pytest

from muster_server.systems.messages.topics import (
    LISTS_MAX,
    NewTopic,
    Topic,
    TopicChange,
    TopicError,
    Topics,
    TopicsFile,
    new_secret,
)

NOW = 4_000_000_000_000
DAY_MS = 86_400_000


@pytest.fixture
def file(tmp_path: Path) -> TopicsFile:
    topics = TopicsFile(tmp_path, 100)
    topics.open()
    topics.create(NewTopic(name="orders", callback="https://shop.example/hook"))
    return topics


def of(file: TopicsFile, name: str = "orders") -> Topic:
    found = file.named(name)
    assert found is not None
    return found


def test_a_change_sets_what_it_names_and_leaves_the_rest(file: TopicsFile, tmp_path: Path) -> None:
    before = of(file)
    change = TopicChange(
        callback="room:sports", retries_ms=(5,), workers=2, retry_after_max_s=30.0, allowed=("10.1.0.0/16",)
    )
    after = file.change("orders", change, NOW)
    assert (after.callback, after.retries_ms, after.workers, after.retry_after_max_s) == ("room:sports", (5,), 2, 30.0)
    assert (after.number, after.secrets, after.policy, after.timeout_s) == (
        before.number,
        before.secrets,
        before.policy,
        before.timeout_s,
    )
    other = Topics(tmp_path)
    assert other.look()
    assert other.named("orders") == after
    version = file.version
    file.change("orders", change, NOW)
    assert file.version == version, "the same once more writes nothing"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (TopicChange(callback="ftp://shop.example"), "bad_request"),
        (TopicChange(callback="user:7"), "bad_request"),
        (TopicChange(secret="whsec_short"), "bad_request"),
        (TopicChange(allowed=("here",)), "bad_request"),
        (TopicChange(overlap_s=0.0), "conflict"),
    ],
)
def test_a_change_that_makes_no_sense_changes_nothing(file: TopicsFile, change: TopicChange, code: str) -> None:
    before = of(file)
    with pytest.raises(TopicError) as caught:
        file.change("orders", change, NOW)
    assert (caught.value.code, of(file)) == (code, before)
    with pytest.raises(TopicError, match="no topic"):
        file.change("nosuch", TopicChange(workers=1), NOW)


def test_a_secret_that_cannot_sign_is_refused_before_a_worker_has_it(file: TopicsFile) -> None:
    for secret in ("secret", "whsec_AAAA", "whsec_%%%"):
        with pytest.raises(TopicError, match="24 to 64 bytes"):
            file.create(NewTopic(name="bills", callback="https://shop.example/", secret=secret))


def test_two_secrets_sign_until_the_former_one_is_retired(file: TopicsFile) -> None:
    (first,) = of(file).secrets
    after = file.change("orders", TopicChange(secret=""), NOW)
    second, former = after.secrets
    assert (former, after.retire_at) == (first, NOW + DAY_MS)
    assert second != first
    with pytest.raises(TopicError, match="two secrets"):
        file.change("orders", TopicChange(secret=""), NOW)
    assert file.change("orders", TopicChange(secret=second), NOW) == after, "asked for again"
    assert not file.retire(NOW + DAY_MS - 1)
    assert [topic.name for topic in file.retire(NOW + DAY_MS)] == ["orders"]
    assert (of(file).secrets, of(file).retire_at) == ((second,), 0)


def test_an_overlap_is_ended_and_a_leaked_secret_is_replaced_at_once(file: TopicsFile) -> None:
    given = new_secret()
    file.change("orders", TopicChange(secret=given, overlap_s=60.0), NOW)
    assert file.change("orders", TopicChange(overlap_s=120.0), NOW).retire_at == NOW + 120_000
    assert file.change("orders", TopicChange(overlap_s=0.0), NOW).secrets == (given,)
    file.change("orders", TopicChange(secret=""), NOW)
    assert len(file.change("orders", TopicChange(secret="", overlap_s=0.0), NOW).secrets) == 1


def test_lists_of_networks_are_bounded_over_changes_too(file: TopicsFile) -> None:
    for number in range(LISTS_MAX - 1):
        file.create(NewTopic(name=f"t{number}", callback="https://a.example/", allowed=(f"10.{number}.0.0/16",)))
    file.create(NewTopic(name="other", callback="https://a.example/"))
    file.change("t0", TopicChange(allowed=("10.98.0.0/16", "10.99.0.0/16")), NOW)
    with pytest.raises(TopicError, match="different network lists"):
        file.change("orders", TopicChange(allowed=("10.97.0.0/16",)), NOW)


def test_a_file_without_new_settings_is_one_of_before_them(file: TopicsFile, tmp_path: Path) -> None:
    written = msgspec.json.decode((tmp_path / "topics.json").read_bytes())
    assert set(written["topics"][0]) == {"number", "name", "callback", "secrets"}


def test_subscribers_exist_and_have_none_of_their_own(file: TopicsFile) -> None:
    file.create(NewTopic(name="bills", callback="https://shop.example/"))
    paid = file.create(NewTopic(name="paid", callback="topics:orders,bills"))
    assert paid.subscribers == ("orders", "bills")
    assert of(file).subscribers == ()
    for callback, code, why in (
        ("topics:nosuch", "bad_request", "no topic 'nosuch'"),
        ("topics:paid", "bad_request", "has subscribers of its own"),
        ("topics:all", "bad_request", "cannot subscribe to itself"),
        ("topics:orders,orders", "bad_request", "different names"),
        ("topics:", "bad_request", "is not"),
        ("topics:a b", "bad_request", "different names"),
    ):
        with pytest.raises(TopicError, match=why) as caught:
            file.create(NewTopic(name="all", callback=callback))
        assert caught.value.code == code
    with pytest.raises(TopicError, match="subscribes to topic paid"):
        file.change("orders", TopicChange(callback="topics:bills"), NOW)
    with pytest.raises(TopicError, match="subscribes to topic paid"):
        file.remove("bills")
    file.change("paid", TopicChange(callback="topics:orders"), NOW)
    file.remove("bills")
    file.remove("paid")
    file.remove("orders")


def test_a_concurrency_is_for_workers_alone(file: TopicsFile) -> None:
    file.change("orders", TopicChange(concurrency=5), NOW)
    with pytest.raises(TopicError, match="at-once"):
        file.change("orders", TopicChange(callback="pull:"), NOW)
    assert file.change("orders", TopicChange(callback="pull:", concurrency=0), NOW).is_leased
    with pytest.raises(TopicError, match="at-once"):
        file.create(NewTopic(name="jobs", callback="pull:", concurrency=5))
