"""Store URLs: what is wrong with one is said without its password."""

from __future__ import annotations

import pytest

from vv_agent.checkpoint.store import open_store
from vv_agent.checkpoint.urls import without_password
from vv_agent.errors import StoreError


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://user:hunter2@h/db", "'mysql://user:***@h/db' names no store"),
        ("mysql://h/db?password=hunter2&x=1", "'mysql://h/db?password=***&x=1' names no store"),
        ("user:hunter2@h/db", "'user:***@h/db' names no store"),
        ("postgresql://h:abc/db", "'postgresql://h:***/db': the port is not a number"),
        ("postgresql://user:hunter2", "'postgresql://user:***': the port is not a number"),
        ("postgresql://user:my@hunter2@h/db", "'postgresql://user:***@h/db': the password has an @; write it as %40"),
    ],
)
def test_an_invalid_url_is_shown_without_its_password(url: str, said: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert caught.value.code == "store_url_invalid"
    assert said in str(caught.value)
    assert caught.value.__cause__ is None, "the parser's own words may hold the password"
    assert "hunter2" not in str(caught.value)


def test_a_store_that_does_not_answer_is_named_without_its_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError) as caught:
        open_store("postgresql://u:hunter2@127.0.0.1:1/db?password=hunter3")
    assert caught.value.code == "store_unavailable"
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///a:b@c/runs.db", "postgresql://[::1]:5432/db", "redis://h:6379/0", "memory://", "postgresql://u@h/db",
        "postgresql://h1:1,h2:2/db",
    ],
)  # fmt: skip
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert without_password(url) == url
