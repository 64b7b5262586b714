"""The Redis store remembers heads it wrote: a record that was made anew by another process is never taken for the old."""

from __future__ import annotations

import fakeredis
import pytest

from vv_agent.checkpoint.record import Change, Claimed, Commit, NewRun
from vv_agent.checkpoint.redis import RedisStore
from vv_agent.errors import ClaimLost
from vv_agent.testing import FakeClock


def test_a_stale_claim_saves_nothing_into_a_new_record_of_the_same_key() -> None:
    server, clock = fakeredis.FakeServer(), FakeClock()
    mine, other = (RedisStore("redis://x", client=fakeredis.FakeRedis(server=server), clock=clock) for _ in range(2))
    mine.create([NewRun("k", "run_old", "1" * 64, b"d", b"old")])
    stale = mine.claim("k", 1, "a" * 32, owner="A", lease=1000)
    assert isinstance(stale, Claimed)
    clock.advance(5_000)
    other.delete("k")
    other.create([NewRun("k", "run_new", "2" * 64, b"d", b"new")])
    rightful = other.claim("k", 1, "b" * 32, owner="B", lease=30_000)
    assert isinstance(rightful, Claimed)
    with pytest.raises(ClaimLost):
        mine.save(stale.claim, Change(1, Commit(), log=(b"of the old run",)))
    assert other.save(rightful.claim, Change(1, Commit())).head.run_id == "run_new"
