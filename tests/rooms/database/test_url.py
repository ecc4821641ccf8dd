"""The forms of the database's URL, and that its password is never shown."""

import pytest

from muster_server.plane.database.errors import translated
from muster_server.plane.database.url import location


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("sqlite:////var/lib/muster.db", "sqlite", "sqlite:////var/lib/muster.db"),
        ("sqlite:///muster.db", "sqlite", "sqlite:///muster.db"),
        ("mysql://me:s3cret@db/rooms", "mysql", "mysql://me:***@db/rooms"),
        ("mariadb://me@[::1]:3307/rooms", "mysql", "mysql://me@[::1]:3307/rooms"),
        ("postgresql://me:p%40ss@db:5433/rooms", "postgresql", "postgresql://me:***@db:5433/rooms"),
        ("postgres://db/rooms", "postgresql", "postgresql://db/rooms"),
    ],
)
def test_a_url_is_read_and_shown_without_its_password(text: str, kind: str, shown: str) -> None:
    read = location(text)
    assert (read.kind, str(read)) == (kind, shown)
    assert "s3cret" not in repr(read)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is not sqlite:///PATH"),
        ("muster.db", "is not sqlite:///PATH"),
        ("oracle://me:s3cret@db/rooms", "is not sqlite:///PATH"),
        ("mysql://me:s3cret@db:many/rooms", "is not sqlite:///PATH"),
        ("mysql+pymysql://me:s3cret@db/rooms", "is not sqlite:///PATH"),
        ("mysql://me:s3cret@db", "names no database"),
        ("postgresql:///rooms", "missing host"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite://var/muster.db", "a SQLite URL has no host"),
        ("postgresql://me:s3cret@db/rooms?sslmode=require", "unsupported options (sslmode)"),
    ],
)
def test_a_wrong_url_is_refused_in_one_line_without_its_password(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=r"'.*'") as refused:
        location(text)
    line = str(refused.value)
    assert wrong in line
    assert "s3cret" not in line
    assert "\n" not in line


def test_an_error_that_names_the_password_does_not_pass_it_on() -> None:
    error = OSError("cannot connect with\n password 's3cret'")
    assert (
        str(translated(error, "mysql://db/rooms", "s3cret")) == "mysql://db/rooms: cannot connect with password '***'"
    )
