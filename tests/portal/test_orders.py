"""Orders over two databases, the nightly report, and codes by phone."""

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from portal.tables import Payment
from tests.databases import Server, made
from tests.portal.site import ANN, BO, STAFF, Site, Visitor, running
from tests.waiting import wait_for

Visit = Callable[..., Visitor]
SECRET_TEXT = "the water comes on Tuesdays"


def credits(visitor: Visitor) -> int:
    found = re.search(r'id="credits">(-?\d+)<', visitor.get("/orders").text)
    assert found is not None
    return int(found[1])


def sold(author: Visitor, title: str, fee: int) -> str:
    """Publish a share with a fee, and return its path."""
    answer = author.send("/shares", title=title, text=SECRET_TEXT, field="seeds", at="", fee=str(fee))
    path: str = answer.headers["location"]
    return path


@pytest.fixture
def two(visitor: Visit) -> tuple[Visitor, Visitor]:
    ann, bo = visitor(), visitor(1)
    ann.login(ANN)
    bo.login(BO)
    return ann, bo


@pytest.fixture(scope="module", params=["sqlite", "mariadb", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A portal on each database; if it has a server, the ledger is on the other kind of server."""
    kind: str = request.param
    if kind == "sqlite":
        yield request.getfixturevalue("site")
        return
    urls: list[str] = []
    for name in kind, "postgresql" if kind == "mariadb" else "mariadb":
        server: Server = request.getfixturevalue(name)
        server.start()  # here: it ends with the thread that starts it
        with ThreadPoolExecutor() as threads:  # the browser's loop runs in this one
            urls.append(threads.submit(asyncio.run, made(server)).result().url)
    folder = tmp_path_factory.mktemp(f"portal-{kind}")
    with running(folder, PORTAL_DATABASE=urls[0], PORTAL_LEDGER=urls[1]) as site:
        yield site


@pytest.fixture
def sides(shop: Site) -> Iterator[tuple[Visitor, Visitor]]:
    """Ann, who sells, and Bo, who buys."""
    ann, bo = shop.visitor(), shop.visitor(1)
    ann.login(ANN)
    bo.login(BO)
    yield ann, bo
    ann.close()
    bo.close()


def test_a_share_with_a_fee_is_paid_for_once_and_read_after_that(shop: Site, sides: tuple[Visitor, Visitor]) -> None:
    ann, bo = sides
    before = credits(ann), credits(bo)
    path = sold(ann, "Paid once", 3)
    stranger = shop.visitor()
    for reader in bo, stranger:
        page = reader.get(path).text
        assert "It takes 3 credits" in page
        assert SECRET_TEXT not in page
    assert SECRET_TEXT in ann.get(path).text
    for _ in range(2):
        assert bo.send(f"{path}/order").status_code == 303
    wait_for(lambda: SECRET_TEXT in bo.get(path).text, "the text of a share that was paid for")
    assert bo.send(f"{path}/order").status_code == 303
    assert (credits(ann), credits(bo)) == (before[0] + 3, before[1] - 3)
    assert SECRET_TEXT not in stranger.get(path).text
    stranger.close()
    wait_for(lambda: "You got 3 credits" in ann.get("/inbox").text, "the notice of the sale")
    # The author takes it back: the compensation returns the fee.
    assert bo.send(f"{path}/withdraw").status_code == 404
    assert ann.send(f"{path}/withdraw").status_code == 303
    wait_for(lambda: (credits(ann), credits(bo)) == before, "the fee's return")
    wait_for(lambda: "3 credits back" in bo.get("/inbox").text, "the notice of the return")
    assert bo.get(path).status_code == 404


def test_a_member_with_too_few_credits_is_refused_and_may_try_again(two: tuple[Visitor, Visitor]) -> None:
    ann, bo = two
    before = credits(bo)
    path = sold(ann, "Too dear", 1_000)
    for _ in range(2):
        assert bo.send(f"{path}/order").status_code == 303
        wait_for(lambda: "You have too few" in bo.get(path).text, "the refusal")
    assert credits(bo) == before
    assert SECRET_TEXT not in bo.get(path).text
    for fee in "1001", "-1", "two":
        assert ann.send("/shares", title="No fee", text="text", field="seeds", at="", fee=fee).status_code == 400


def test_credits_and_orders_agree_after_deaths_of_the_worker(shop: Site, sides: tuple[Visitor, Visitor]) -> None:
    ann, bo = sides
    paths = [sold(ann, f"Order {number}", 1) for number in range(12)]
    for number, path in enumerate(paths):
        assert bo.send(f"{path}/order").status_code == 303
        if number % 3 == 0:
            for id in re.findall(r"/orders/(\d+)/cancel", bo.get("/orders").text)[:1]:
                assert bo.send(f"/orders/{id}/cancel").status_code in {303, 400}
        if number % 4 == 1:
            wait_for(lambda: shop.has("muster.work"), "the next worker")
            os.kill(shop.child("muster.work"), signal.SIGKILL)
    for path in paths[10:]:
        assert ann.send(f"{path}/withdraw").status_code == 303

    def agree() -> bool:
        orders = shop.rows("portal", "SELECT id, state FROM orders")
        payments = {row.order: row.state for row in shop.rows("ledger", select(Payment.order, Payment.state))}
        withdrawn = shop.rows(
            "portal",
            "SELECT 1 FROM orders o JOIN shares s ON s.id = o.share WHERE s.state <> 'public' AND o.state = 'paid'",
        )
        wanted = {"paid": "taken", "refused": "refused", "cancelled": "returned", "returned": "returned"}
        return not withdrawn and all(payments.get(row.id) == wanted.get(row.state, "") for row in orders)

    wait_for(agree, "both databases to agree")
    states = Counter(row.state for row in shop.rows("portal", "SELECT state FROM orders"))
    assert "waiting" not in states
    assert states["paid"] >= 6
    wallets = "SELECT sum(credits - 20) AS total, min(credits) AS least FROM wallets"
    (all_wallets,) = shop.rows("ledger", wallets)
    (taken,) = shop.rows("ledger", "SELECT sum(fee) AS fees FROM payments WHERE state = 'taken'")
    assert (all_wallets.total, taken.fees) == (0, credits(ann) - 20)
    assert all_wallets.least >= 0


def test_the_report_reaches_the_staff(visitor: Visit, site: Site) -> None:
    staff, bo = visitor(), visitor()
    staff.login(STAFF)
    bo.login(BO)
    assert bo.send("/staff/report").status_code == 404
    assert staff.send("/staff/report").status_code == 303
    text = site.mail(STAFF, lambda text: "The portal on" in text)
    assert re.search(r"shares: [1-9]", text)
    assert "credits gained or lost by all accounts together: 0" in text
    wait_for(lambda: "The portal on" in staff.get("/inbox").text, "the report's notice")
    (entry,) = site.asked("/api/v1/topics/report/recurring")["recurring"]
    assert (entry["name"], entry["cron"]) == ("nightly", "0 3 * * *")


def test_an_account_is_made_by_a_code_to_a_phone(visitor: Visit, site: Site) -> None:
    new, again = visitor(), visitor(1)
    fields = {"name": "Di", "password": "a long password", "kind": "person"}
    page = new.send("/register", contact="+86 138-1234 5678", **fields).text
    registration = re.search(r'name="registration" value="(\w+)"', page)
    assert registration is not None, page
    code = re.search(r"\b\d{6}\b", site.mail("+8613812345678").partition("\n\n")[2])
    assert code is not None
    assert new.send("/register/code", registration=registration[1], code=code[0]).status_code == 303
    assert again.login("+8613812345678", "a long password").status_code == 303
    # The owner of a number that has an account learns of another registration, and texts are bounded.
    codes = [again.send("/register", contact="+8613812345678", **fields).status_code for _ in range(3)]
    assert codes == [200, 200, 429]
    assert site.mail("+8613812345678", lambda text: "You have one already" in text)
    for wrong in "+12", "138 1234 5678", "ann":
        assert again.send("/register", contact=wrong, **fields).status_code == 400
