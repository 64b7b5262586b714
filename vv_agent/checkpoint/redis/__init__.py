"""The Redis store: records of a tree in one hash slot, written by one script that commits or refuses.

The verbs and rules are those of every store. A transaction reads with plain commands, or from what this process wrote
last, and collects its writes; at the end one Lua script compares the version of each record and carries all writes
out, or none and says what stands there: then somebody was faster and the verb is done again. So nothing is decided in
Lua, and no long list is ever read inside a script (10,000 entries held the server for 16 ms there, measured).

Keys, with the bucket `b = crc16(root key) % 64` as hash tag, so that a run, its children and its bucket's queues
share a slot:

    vv:{b}:h:KEY   hash: v (version), head, journal,         vv:{b}:e:KEY   list of entries, kind byte first
                   waits (a time, see `marks`)
    vv:{b}:b:KEY   hash of blobs                             vv:{b}:s:KEY   hash of signals, unread and the last read
    vv:{b}:due:Q   sorted set of a queue by due              vv:{b}:runs    sorted set of keys by creation
    vv:{b}:held    the same of claimed runs only             vv:tree:KEY    root key of a child
    vv:{b}:x:KEY   stream of live text, capped, expiring     vv:{b}:r:KEY   sorted set of its readers by their time
    vv:meta, vv:def:DIGEST, vv:workers                       vv:changed     channel: something was written
"""

from __future__ import annotations

from vv_agent.checkpoint.redis.store import RedisStore

__all__ = ["RedisStore"]
