"""Who watches runs: each hears all from then on, a slow one is cut off, and what comes again tells nothing new."""

from muster_server.systems.fleet import watching as module
from muster_server.systems.fleet.questions import Event
from muster_server.systems.fleet.watching import EVENTS_MAX, SeenEvents, Watching

RUN, OTHER = ("a", 1), ("b", 1)


def heard(queue: module.Queue) -> list[Event | None]:
    return [queue.get_nowait() for _ in range(queue.qsize())]


def test_each_who_watches_a_run_hears_of_it_and_of_no_other() -> None:
    watching = Watching()
    first, second, other = watching.open(RUN), watching.open(RUN), watching.open(OTHER)
    event = Event("result", "a@1", client="c")
    watching.say(RUN, event)
    watching.close(RUN, second)
    watching.say(RUN, event)
    watching.over(RUN)
    assert heard(first) == [event, event, None]
    assert heard(second) == [event]
    assert heard(other) == []
    watching.end()
    assert heard(other) == [None]


def test_one_that_does_not_read_is_cut_off_and_holds_up_nobody() -> None:
    watching = Watching()
    slow, quick = watching.open(RUN), watching.open(RUN)
    for number in range(EVENTS_MAX + 1):
        watching.say(RUN, Event("result", "a@1", client=str(number)))
        assert quick.get_nowait() is not None
    said = heard(slow)
    assert len(said) == EVENTS_MAX
    assert said[-1] is None


def test_so_many_may_watch_and_their_places_come_back() -> None:
    watching = Watching()
    queues = [watching.open((str(number), 0)) for number in range(module.WATCHED_MAX)]
    assert watching.full
    watching.close(("0", 0), queues[0])
    watching.close(("0", 0), queues[0])
    watching.over(("1", 0))
    assert not watching.full
    watching.open(RUN)
    watching.open(RUN)
    assert watching.full


def test_what_was_told_is_told_once() -> None:
    told = SeenEvents()
    assert told.new(Event("asked", "a@1", ["x", "y"])) == Event("asked", "a@1", ["x", "y"])
    assert told.new(Event("asked", "a@1", ["x", "y"])) is None
    assert told.new(Event("asked", "a@1", ["y", "z"])) == Event("asked", "a@1", ["z"])
    assert told.new(Event("replaced", "a@1", [])) is None
    result = Event("result", "a@1", client="x", ok=True)
    assert told.new(result) is result
    assert told.new(result) is None
    assert not told.over
    assert told.new(Event("ended", "a@1")) is not None
    assert told.over
