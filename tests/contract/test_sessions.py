"""The contract of a session, the same in memory, SQLite, PostgreSQL and Redis."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from vv_agent.errors import CannotServe, CheckpointError, ConfigError
from vv_agent.messages import Message
from vv_agent.sessions import MemorySessionStore, RedisSessionStore, SqliteSessionStore, SqlSessionStore, open_session
from vv_agent.sessions.base import SessionStore, StoredSession, commit_id, payload_digest

ONE, TWO, THREE = (Message("user", text) for text in ("one", "two", "drei ✓"))


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionStore]:
    if request.param == "memory":
        yield MemorySessionStore()
    elif request.param == "sqlite":
        yield SqliteSessionStore(tmp_path / "deep" / "sessions.db")
    elif request.param == "postgres":
        if servers.postgres_url() is None:
            pytest.skip(servers.MISSING["postgres"])
        with servers.postgres_schema() as url:
            yield SqlSessionStore(url)
    else:
        url = servers.redis_url()
        if url is None:
            pytest.skip(servers.MISSING["redis"])
        prefix = f"vv-test-{uuid.uuid4().hex[:12]}"
        redis_store = RedisSessionStore(url, key_prefix=prefix)
        yield redis_store
        for name in ("s", "other"):
            redis_store.session(name).clear()


@pytest.fixture
def session(store: SessionStore) -> StoredSession:
    return store.session("s")


def test_items_come_back_in_order_and_the_newest_by_limit(session: StoredSession) -> None:
    session.add_items([ONE, TWO])
    session.add_items([])
    session.add_items([THREE])
    assert session.get_items() == [ONE, TWO, THREE]
    assert session.get_items(2) == [TWO, THREE]
    assert session.get_items(9) == [ONE, TWO, THREE]
    assert session.get_items(0) == []
    with pytest.raises(ConfigError, match="limit"):
        session.get_items(-1)


def test_sessions_of_other_ids_are_apart(store: SessionStore, session: StoredSession) -> None:
    other = store.session("other")
    session.add_items([ONE])
    other.add_items([TWO])
    session.clear()
    assert other.get_items() == [TWO]
    assert session.get_items() == []


def test_the_newest_item_is_taken_off(session: StoredSession) -> None:
    session.add_items([ONE, TWO, TWO])
    assert session.pop_item() == TWO
    assert session.get_items() == [ONE, TWO]
    assert (session.pop_item(), session.pop_item(), session.pop_item()) == (TWO, ONE, None)


def test_an_item_that_cannot_be_read_is_an_error_and_stays(store: SessionStore, session: StoredSession) -> None:
    store.append("s", ['{"role":"user"}'])
    for read in (session.get_items, session.pop_item):
        with pytest.raises(CheckpointError, match="session_item_invalid: .* lacks content"):
            read()
    assert len(store.read("s", None)) == 1


def test_an_append_is_made_once_by_its_id(session: StoredSession) -> None:
    name = commit_id("run")
    assert session.add_items_once(name, payload_digest([ONE]), [ONE]) == "committed"
    assert session.add_items_once(name, payload_digest([ONE]), [ONE]) == "replayed"
    with pytest.raises(CheckpointError, match="session_commit_identity_conflict"):
        session.add_items_once(name, payload_digest([TWO]), [TWO])
    assert session.get_items() == [ONE]
    session.clear()
    assert session.add_items_once(name, payload_digest([TWO]), [TWO]) == "committed", "clear forgets the appends"


def test_an_append_of_nothing_counts_too(session: StoredSession) -> None:
    assert session.add_items_once(commit_id("run"), payload_digest([]), []) == "committed"
    assert session.add_items_once(commit_id("run"), payload_digest([]), []) == "replayed"


@pytest.mark.parametrize(
    ("name", "digest", "code"),
    [
        ("x", payload_digest([ONE]), "session_commit_identity_invalid"),
        (commit_id("k"), "X", "session_commit_payload_digest_invalid"),
        (commit_id("k"), payload_digest([TWO]), "session_commit_payload_digest_mismatch"),
    ],
)
def test_a_wrong_identity_is_refused(session: StoredSession, name: str, digest: str, code: str) -> None:
    with pytest.raises(CheckpointError, match=code):
        session.add_items_once(name, digest, [ONE])
    assert session.get_items() == []


def test_of_many_at_once_one_appends(session: StoredSession) -> None:
    outcomes = []
    barrier = threading.Barrier(8)

    def append() -> None:
        barrier.wait()
        outcomes.append(session.add_items_once(commit_id("run"), payload_digest([ONE]), [ONE]))

    threads = [threading.Thread(target=append) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["committed"] + ["replayed"] * 7
    assert session.get_items() == [ONE]


def test_another_process_opens_it_by_its_name(store: SessionStore, session: StoredSession) -> None:
    if isinstance(store, MemorySessionStore):
        assert session.ref is None
        return
    session.add_items([ONE])
    assert session.ref is not None
    assert open_session(session.ref, [None, getattr(store, "url", None)]).get_items() == [ONE]


def test_a_name_leaves_the_password_out_and_is_opened_with_one_that_is_known() -> None:
    session = RedisSessionStore("redis://:secret@127.0.0.1:1/0").session("s")
    assert session.ref == "redis://:***@127.0.0.1:1/0#s"
    with pytest.raises(CannotServe, match="VV_AGENT_SESSIONS"):
        open_session(session.ref)
    assert open_session(session.ref, ["redis://:secret@127.0.0.1:1/0"]).ref == session.ref


@pytest.mark.parametrize("name", ["", " ", None, 7])
def test_a_session_needs_an_id(name: object) -> None:
    with pytest.raises(ConfigError, match="session_invalid"):
        MemorySessionStore().session(name)  # type: ignore[arg-type]
