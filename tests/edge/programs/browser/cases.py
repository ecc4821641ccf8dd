"""Cases of Debian's Chromium against one instance: `cases.py CHROMIUM CHAT SECRET_FILE`.

Prints one line of JSON for each case: its name, and the error if it failed. CHAT: the URL of the chat of `muster up --demo`,
whose pages have the SDK. The edge there pings each second and awaits a pong for half of one.
"""

import json
import sys
import time
import traceback
import uuid
from typing import Any

import jwt
from playwright.sync_api import Browser, BrowserContext, Error, Page, sync_playwright

from muster_server.plane.trust import signing_secrets

CHROMIUM, CHAT, SECRET_FILE = sys.argv[1:4]
PATIENT_MS = 60_000
HELPERS = """() => {
  const watched = window.watched = {}
  window.open_client = options => new Centrifuge(`ws://${location.host}/connection/websocket`, {
    minReconnectDelay: 20, maxReconnectDelay: 200,
    getToken: async () => (await (await fetch('token')).json()).token, ...options,
  })
  window.watch = async (client, room, options = {}) => {
    const seen = watched[room] = { data: [], events: [] }
    const sub = client.newSubscription(room, { recoverable: true, positioned: true, ...options })
    sub.on('subscribing', ({ code }) => seen.events.push(['subscribing', code]))
    sub.on('subscribed', ({ wasRecovering, recovered, streamPosition }) => {
      seen.events.push(['subscribed', wasRecovering, recovered])
      seen.position ??= streamPosition
    })
    sub.on('publication', ({ data, offset }) => { seen.data.push(data); seen.position = { ...seen.position, offset } })
    sub.subscribe()
    client.connect()
    await sub.ready(60_000)
    return sub
  }
}"""


def token(seconds: float, user: str = "7") -> str:
    """A token of a user for its rooms."""
    cap = {"chat:*": ["read", "publish", "history", "members"]}
    claims = {"sub": user, "exp": int(time.time() + seconds), "cap": cap}
    return jwt.encode(claims, signing_secrets(SECRET_FILE)[0], algorithm="HS256")


class Pages:
    """Pages of one visitor, who has no other."""

    def __init__(self, browser: Browser) -> None:
        self.context: BrowserContext = browser.new_context()
        self.context.set_default_timeout(PATIENT_MS)
        self.errors: list[str] = []

    def at(self, path: str = "") -> Page:
        """A page of the chat."""
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(CHAT + path)
        return page

    def bare(self) -> Page:
        """A page with the SDK and the helpers, whose own chat is quiet."""
        page = self.at("tabs.html#room=chat:nothing")
        page.add_script_tag(url="centrifuge.js")
        page.evaluate(HELPERS)
        return page


def publisher(pages: Pages, room: str) -> Page:
    """A page with `say(data)`, which is answered once the message is numbered."""
    page = pages.bare()
    page.evaluate("async () => { window.client = open_client({}); client.connect(); await client.ready(60_000) }")
    page.evaluate(f"() => {{ window.say = data => client.publish({json.dumps(room)}, data) }}")
    return page


def told(page: Page, room: str) -> Any:
    """The messages that a page has seen of a room."""
    return page.evaluate("room => watched[room]", room)


def until(page: Page, room: str, count: int) -> None:
    """Wait for this many publications."""
    page.wait_for_function("([room, count]) => watched[room].data.length >= count", arg=[room, count])


def shows_the_lines_of_the_demo(pages: Pages, room: str) -> None:
    """A visitor sees messages move as soon as the page is there."""
    page = pages.at()
    page.locator("#messages li").nth(1).wait_for()
    page.get_by_text("messages to").first.wait_for()
    assert page.inner_text("#state") == "connected"


def shows_two_visitors_to_each_other(pages: Pages, room: str) -> None:
    """Messages, likes, presence; one that comes later sees the history."""
    one, two = pages.at(f"#room={room}"), pages.at(f"#room={room}")
    one.get_by_text("2 here").wait_for()
    two.fill("#text", "hello <b>there</b>")
    two.press("#text", "Enter")
    one.get_by_text("hello <b>there</b>").wait_for()
    one.click("#like")
    two.locator("#likes", has_text="1").wait_for()
    late = pages.at(f"#room={room}")
    late.get_by_text("hello <b>there</b>").wait_for()
    late.locator("#likes", has_text="1").wait_for()
    assert late.locator("#messages li").count() == 1


def changes_rooms(pages: Pages, room: str) -> None:
    """A message of the former room is no part of the next one."""
    page, other = pages.at(f"#room={room}"), publisher(pages, room)
    other.evaluate("() => say({ text: 'of the former' })")
    page.get_by_text("of the former").wait_for()
    page.click("nav button[data-room='chat:lobby']")
    other.evaluate("() => say({ text: 'too late' })")
    page.fill("#text", "of the lobby")
    page.press("#text", "Enter")
    page.get_by_text("of the lobby").wait_for()
    assert "former" not in page.inner_text("#messages")
    assert "too late" not in page.inner_text("#messages")


def recovers_what_it_missed_while_offline(pages: Pages, room: str) -> None:
    """The chat says that nothing is lost."""
    away, here = Pages(pages.context.browser), publisher(pages, room)  # type: ignore[arg-type]
    page = away.at(f"#room={room}")
    page.locator("#state", has_text="connected").wait_for()
    here.evaluate("() => say({ text: 'before' })")
    page.get_by_text("before").wait_for()
    away.context.set_offline(True)
    page.locator("#state", has_text="connecting").wait_for()
    here.evaluate("() => say({ text: 'meanwhile' })")
    away.context.set_offline(False)
    page.get_by_text("meanwhile").wait_for()
    page.get_by_text("back, with everything that was missed").wait_for()
    assert page.locator("#messages .gap").count() == 0
    away.context.close()


def keeps_a_frozen_tab(pages: Pages, room: str) -> None:
    """It answers no ping, but its kernel does: it stays, and has everything when it wakes."""
    page, other = pages.bare(), publisher(pages, room)
    page.evaluate("async room => { await watch(open_client({}), room) }", room)
    session = pages.context.new_cdp_session(page)
    session.send("Page.setWebLifecycleState", {"state": "frozen"})
    for n in range(20):
        other.evaluate("n => say(n)", n)
    time.sleep(3.5)  # longer than two pings and the wait for their pongs, which is what is tested
    session.send("Page.setWebLifecycleState", {"state": "active"})
    until(page, room, 20)
    seen = told(page, room)
    assert seen["data"] == list(range(20)), seen
    assert seen["events"] == [["subscribing", 0], ["subscribed", False, False]], seen


def shares_one_connection_among_ten_tabs(pages: Pages, room: str) -> None:
    """A SharedWorker is one member for all of them, as long as one is there."""
    tabs = [pages.at(f"tabs.html#room={room}") for _ in range(10)]
    for tab in tabs:
        tab.wait_for_selector("body[data-subscribed=yes]")
    other = publisher(pages, room)
    stats = "async room => (await client.presenceStats(room)).numClients"
    assert other.evaluate(stats, room) == 1
    tabs[0].click("#hello")
    for tab in tabs:
        tab.get_by_text("hello from tab").wait_for()
    tabs[0].close()
    other.evaluate("() => say({ text: 'one is closed' })")
    for tab in tabs[1:]:
        tab.get_by_text("one is closed").wait_for()
    for tab in tabs[1:]:
        tab.close()
    other.wait_for_function("async room => (await client.presenceStats(room)).numClients === 0", arg=room, polling=100)


def renews_its_token(pages: Pages, room: str) -> None:
    """A token that ends draws another one; the session goes on."""
    page, lives = pages.bare(), [600, -2]  # within the leeway of 5 s for clocks
    page.expose_function("nextToken", lambda: token(lives.pop() if len(lives) > 1 else lives[0]))
    page.evaluate(
        """async room => {
          window.asked = []
          window.client = open_client({ getToken: () => { asked.push(1); return nextToken() } })
          client.on('connected', () => { window.connections = (window.connections ?? 0) + 1 })
          await watch(client, room)
        }""",
        room,
    )
    page.wait_for_function("() => asked.length >= 2")  # the SDK brings another one when the first one ends
    page.evaluate("room => client.publish(room, 'still here')", room)
    until(page, room, 1)
    assert page.evaluate("() => connections") == 1
    assert told(page, room)["events"] == [["subscribing", 0], ["subscribed", False, False]]


def goes_on_after_a_reload_from_its_position(pages: Pages, room: str) -> None:
    """A page that keeps its position misses nothing while it loads."""
    page, other = pages.bare(), publisher(pages, room)
    page.evaluate("async room => { await watch(open_client({}), room) }", room)
    other.evaluate("() => say(1)")
    until(page, room, 1)
    page.evaluate("room => sessionStorage.setItem('position', JSON.stringify(watched[room].position))", room)
    page.goto("about:blank")
    other.evaluate("() => say(2)")
    page.goto(CHAT + "tabs.html#room=chat:nothing")
    page.add_script_tag(url="centrifuge.js")
    page.evaluate(HELPERS)
    since = "JSON.parse(sessionStorage.getItem('position'))"
    page.evaluate(f"async room => {{ await watch(open_client({{}}), room, {{ since: {since} }}) }}", room)
    until(page, room, 1)
    seen = told(page, room)
    assert seen["data"] == [2], seen
    assert seen["events"][-1] == ["subscribed", True, True], seen


def main() -> None:
    """All cases, one after the other, each with a visitor of its own."""
    cases = [
        shows_the_lines_of_the_demo,
        shows_two_visitors_to_each_other,
        changes_rooms,
        recovers_what_it_missed_while_offline,
        keeps_a_frozen_tab,
        shares_one_connection_among_ten_tabs,
        renews_its_token,
        goes_on_after_a_reload_from_its_position,
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for case in cases:
            said, pages, began = {"case": case.__name__}, Pages(browser), time.monotonic()
            try:
                case(pages, f"chat:{case.__name__[:40]}-{uuid.uuid4().hex[:16]}")
                assert not pages.errors, pages.errors
            except (Error, AssertionError):
                said["error"] = traceback.format_exc()
            print(json.dumps(said), flush=True)
            print(case.__name__, round(time.monotonic() - began, 1), file=sys.stderr)
            pages.context.close()
        browser.close()


if __name__ == "__main__":
    main()
