"""What the Redis store does beyond the contract of all stores: readers, memory, races, an emptied server, long lists."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest

from tests import servers
from tests.contract.test_store import LEASE, claimed, new
from tests.redis_server import RedisServer, any_redis
from vv_agent.checkpoint.record import Change, Claimed, Commit, Filter, Presence, Progress, Refused, Seen, Signal
from vv_agent.checkpoint.redis import RedisStore


@pytest.fixture
def fake() -> fakeredis.FakeServer:
    return fakeredis.FakeServer()


def opened(server: fakeredis.FakeServer) -> RedisStore:
    return RedisStore("redis://x", client=fakeredis.FakeRedis(server=server))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis of this module's own."""
    binary = any_redis()
    if binary is None:
        pytest.skip(servers.MISSING["a redis of its own"])
    made = RedisServer(tmp_path_factory.mktemp("redis"), binary)
    yield made
    made.kill()


def test_text_that_nobody_reads_is_not_written(fake: fakeredis.FakeServer) -> None:
    worker, reader = opened(fake), opened(fake)
    worker.create([new("k")])
    assert worker.live.wanted("k") is False, "the commit said that nobody reads it"
    start = reader.live.last()
    reader.live.listen(["k"])
    claimed(worker)
    assert worker.live.wanted("k"), "the next commit says that somebody does"
    worker.live.publish([("k", b"a")])
    assert reader.live.read(["k"], start)[1] == [("k", b"a")]
    reader.live.listen(["k"], reading=False)
    worker.live.told("k", 1)
    worker.live.publish([("k", b"b")])
    assert len(reader.live.read(["k"], start)[1]) == 1


def test_a_reader_that_comes_in_the_middle_of_a_call_is_noticed(fake: fakeredis.FakeServer) -> None:
    worker, reader = opened(fake), opened(fake)
    worker.create([new("k")])
    start = reader.live.last()
    reader.live.listen(["k"])
    assert not worker.live.wanted("k")
    end = time.monotonic() + 5
    while not worker.live.wanted("k") and time.monotonic() < end:
        time.sleep(0.02)
    worker.live.publish([("k", b"late")])
    assert reader.live.read(["k"], start)[1] == [("k", b"late")]


def test_a_cycle_of_a_run_this_process_knows_costs_three_round_trips(server: RedisServer) -> None:
    store = RedisStore(server.url(1))
    store.create([new("k")])
    seen = store.load("k")
    assert seen is not None
    client = server.client()

    def commands() -> dict[str, int]:
        found = client.info("commandstats")
        asked = ("evalsha", "hgetall", "lrange", "xadd", "publish")  # `hmget` and `time` happen in the script
        return {name: int(found.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in asked}

    before = commands()
    answer = store.claim("k", 1, "a" * 32, owner="h/1/1", lease=LEASE, seen=Seen(seen.head.entry_n, seen.head.revision))
    assert isinstance(answer, Claimed)
    saved = store.save(answer.claim, Change(1, Progress(), log=(b"receipt",)))
    assert saved.claim is not None
    store.save(saved.claim, Change(2, Commit(), log=(b"result",)))
    spent = {name: n - before[name] for name, n in commands().items()}
    assert spent == {"evalsha": 3, "hgetall": 0, "lrange": 0, "xadd": 0, "publish": 3}
    store.close()


def test_what_this_process_remembers_of_a_run_never_decides(fake: fakeredis.FakeServer) -> None:
    mine, other = opened(fake), opened(fake)
    mine.create([new("k")])
    claim = claimed(other).claim
    refused = mine.claim("k", 1, "b" * 32, owner="h/2/2", lease=LEASE)
    assert isinstance(refused, Refused)
    assert refused.why == "live_lease"
    other.save(claim, Change(1, Commit()))
    assert isinstance(mine.claim("k", 2, "c" * 32, owner="h/2/2", lease=LEASE), Claimed)


def test_a_forked_child_writes_no_version_that_its_parent_writes_too(server: RedisServer) -> None:
    store = RedisStore(server.url(4))
    told = multiprocessing.get_context("fork").Queue()
    child = multiprocessing.get_context("fork").Process(target=lambda: told.put(store.new_version()))
    child.start()
    try:
        assert told.get(timeout=20)[:8] != store.new_version()[:8]
    finally:
        child.join(20)
    store.close()


def test_a_store_that_was_emptied_has_its_new_id_in_every_process(fake: fakeredis.FakeServer) -> None:
    worker, client = opened(fake), opened(fake)
    old = worker.id
    fakeredis.FakeRedis(server=fake).flushall()
    client.create([new("k")])
    assert client.id != old
    worker.renew([], lease=LEASE, presence=Presence("w", ("q",), 1))
    assert worker.id == client.id == opened(fake).id


def test_a_listing_reads_no_more_keys_than_it_shows_and_misses_none(fake: fakeredis.FakeServer) -> None:
    store = opened(fake)
    for n in range(300):
        store.create([new(f"k{n}")])
    found = [head.key for head in store.find(Filter(limit=1000))]
    assert sorted(found) == sorted(f"k{n}" for n in range(300))
    times = [head.created_at for head in store.find(Filter(limit=1000))]
    assert times == sorted(times, reverse=True)
    assert [head.key for head in store.find(Filter(limit=7))] == found[:7]


def test_a_bucket_with_many_runs_of_one_millisecond_is_listed_whole() -> None:
    store = RedisStore("redis://x", client=fakeredis.FakeRedis(), clock=lambda: 1_000_000)
    store.create([new("root")])
    store.create([new(f"c_{n:032x}", root_key="root", parent_key="root") for n in range(500)])
    assert len(store.find(Filter(limit=10_000))) == 501
    assert len(store.find(Filter(root_key="root", limit=10_000))) == 501


def test_a_note_to_a_run_that_saves_all_the_time_gets_through(server: RedisServer) -> None:
    """The writer that lost twice is let pass, also by another process (here: another client)."""
    saver, poster = RedisStore(server.url(2)), RedisStore(server.url(2))
    saver.create([new("k")])
    claim, stop, saves = claimed(saver).claim, threading.Event(), 0

    def save() -> None:
        nonlocal claim, saves
        while not stop.is_set():
            saves += 1
            saved = saver.save(claim, Change(saves, Progress(), log=(b"x",)))
            assert saved.claim is not None
            claim = saved.claim

    thread = threading.Thread(target=save)
    thread.start()
    took = []
    try:
        for n in range(100):
            began = time.monotonic()
            assert poster.post("k", Signal(f"s{n}", "steer")).new
            took.append((time.monotonic() - began) * 1000)
    finally:
        stop.set()
        thread.join()
    print(f"\n100 notes beside {saves} saves: the slowest took {max(took):.0f} ms")
    assert max(took) < 500
    saver.close()
    poster.close()


def test_a_deleted_run_leaves_nothing(server: RedisServer, tmp_path: Path) -> None:
    store = RedisStore(server.url(3))
    store.create([new("k", blobs={"state": b"x"})])
    store.live.listen(["k"])
    store.live.publish([("k", b"text")])
    store.post("k", Signal("s", "steer"))
    assert store.delete("k")
    left = sorted(key.decode() for key in store.client.scan_iter())
    assert [key for key in left if ":k" in key] == []
    store.close()
