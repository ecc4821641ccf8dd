"""The findings of `muster doctor` about delayed messages."""

from muster_server.systems.messages.doctor import judged


def test_held_targets_and_old_overdue_messages_are_told() -> None:
    held = [{"topic": "orders", "url": "http://shop.example/hook", "why": "failing", "until": 1}]
    found = judged("center-1", {"overdue": {"messages": 7, "oldest_s": 61.0}, "held": held})
    assert [(each.level, each.mend) for each in found] == [
        ("warn", "run muster topic show orders"),
        ("warn", "run muster topic stats TOPIC and muster topic show TOPIC"),
    ]
    assert "failing" in found[0].text
    assert "7 messages are overdue, the oldest for 61 s" in found[1].text


def test_a_message_that_is_a_little_late_is_no_finding() -> None:
    (found,) = judged("center-1", {"overdue": {"messages": 7, "oldest_s": 5.0}, "held": []})
    assert found.level == "ok"
    assert judged("center-1", {})[0].level == "ok"
