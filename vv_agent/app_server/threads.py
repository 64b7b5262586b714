"""Threads: who listens to them, what runs in them, and the requests about them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vv_agent.app_server import protocol as wire
from vv_agent.app_server.outgoing import Connection, OutgoingRouter
from vv_agent.app_server.rpc import INVALID_PARAMS, THREAD_ARCHIVED, THREAD_NOT_FOUND, RequestId, RpcError
from vv_agent.app_server.sql import SqlThreadStore, TurnRecord

if TYPE_CHECKING:
    from vv_agent.app_server.approvals import Approvals
    from vv_agent.app_server.turns import ActiveTurn

PAGE = 2_000
"""Items and turns of a page, and threads of a list, when the client names no limit."""


@dataclass(eq=False)
class LiveThread:
    """A thread in this process. Whatever is stored and said about it happens under its lock: a snapshot and the
    messages after it fit together."""

    thread_id: str
    lock: threading.RLock = field(default_factory=threading.RLock)
    subscribers: dict[Connection, None] = field(default_factory=dict)
    active: ActiveTurn | None = None
    unwritten: TurnRecord | None = None
    """The end of the last turn, while the store does not take it."""
    holders: int = 0
    """How many requests use it now; guarded by the lock of `Threads`."""


class Threads:
    """The threads of a store, and `thread/*`."""

    def __init__(
        self, store: SqlThreadStore, router: OutgoingRouter, approvals: Approvals, clock: Callable[[], float]
    ) -> None:
        self.store = store
        self._router = router
        self._approvals = approvals
        self._clock = clock
        self._live: dict[str, LiveThread] = {}
        self._lock = threading.Lock()

    @contextmanager
    def at(self, thread_id: str, *, archived: bool = False) -> Iterator[tuple[LiveThread, wire.AppThread]]:
        """A thread under its lock, read again. `RpcError` if there is none, or it is archived; `StoreError` while the
        end of its last turn cannot be written: what is stored about it is not true."""
        if thread_id not in self._live and self.store.thread(thread_id) is None:
            raise RpcError(THREAD_NOT_FOUND, f"there is no thread {thread_id[:200]!r}")
        with self.hold(thread_id) as live:
            self.write_end(live)
            thread = self.store.thread(thread_id)
            assert thread is not None
            if thread.status == "archived" and not archived:
                raise RpcError(THREAD_ARCHIVED, f"thread {thread_id!r} is archived")
            yield live, thread

    @contextmanager
    def hold(self, thread_id: str) -> Iterator[LiveThread]:
        """What this process knows of a thread, under its lock; afterwards forgotten, unless somebody listens or a turn
        runs."""
        with self._lock:
            live = self._live.setdefault(thread_id, LiveThread(thread_id))
            live.holders += 1
        try:
            with live.lock:
                yield live
        finally:
            with self._lock:
                live.holders -= 1
                if not (live.holders or live.subscribers or live.active or live.unwritten):
                    del self._live[thread_id]

    def active(self) -> list[ActiveTurn]:
        """The turns that run now."""
        with self._lock:
            return [live.active for live in self._live.values() if live.active is not None]

    def set_status(self, thread: wire.AppThread, status: wire.ThreadStatus) -> wire.AppThread:
        now = self._clock()
        changes = {"status": status, "updated_at": now, "archived_at": now if status == "archived" else None}
        changed = thread.model_copy(update=changes)
        self.store.put_thread(changed)
        return changed

    def write_end(self, live: LiveThread) -> None:
        """Write down that the last turn is over, if the store has not taken it yet. May be repeated."""
        if live.unwritten is None:
            return
        self.store.put_turn(live.unwritten)
        if (thread := self.store.thread(live.thread_id)) is not None:
            self.set_status(thread, "idle")
        live.unwritten = None

    def write_ends(self) -> None:
        with self._lock:
            late = [live.thread_id for live in self._live.values() if live.unwritten is not None]
        for thread_id in late:
            with self.hold(thread_id) as live:
                self.write_end(live)

    def tell(self, live: LiveThread, method: str, params: wire.Part, *also: Connection) -> None:
        """Notify everyone who listens to a thread."""
        self._router.notify({**live.subscribers, **dict.fromkeys(also)}, method, params)

    def tell_status(self, live: LiveThread, status: wire.ThreadStatus, *also: Connection) -> None:
        changed = wire.ThreadStatusChanged(thread_id=live.thread_id, status=status)
        self.tell(live, "thread/status/changed", changed, *also)

    def subscribe(self, live: LiveThread, connection: Connection) -> None:
        """From here on a connection hears a thread, unless it is closed. The thread's lock is held: who closes a
        connection takes it from the threads afterwards."""
        if connection.open:
            live.subscribers[connection] = None

    def leave(self, connection: Connection) -> None:
        """A connection is closed, or will say no more (and still hears); its turns run on."""
        with self._lock:
            threads = list(self._live)
        for thread_id in threads:
            with self.hold(thread_id) as live:
                if not connection.open:
                    live.subscribers.pop(connection, None)
                self._disown(live, connection, for_good=False)

    def _disown(self, live: LiveThread, connection: Connection, *, for_good: bool) -> None:
        """What its turn asks from here on is asked of another one that hears the thread, if there is one."""
        if live.active is None or live.active.asking.owner is not connection:
            return
        self._approvals.leave(live.active.asking, for_good=for_good)
        for heir in live.subscribers:
            self._approvals.own(live.active.asking, heir)

    # Requests.

    def start(self, connection: Connection, request_id: RequestId, params: wire.ThreadStartParams) -> None:
        thread = self.store.new_thread(params.agent_key, params.cwd, params.metadata or {}, self._clock())
        with self.at(thread.thread_id) as (live, _):
            self.subscribe(live, connection)
            started = wire.ThreadStartResponse(
                thread_id=thread.thread_id, agent_key=thread.agent_key, cwd=thread.cwd, status=thread.status
            )
            self._router.respond(connection, request_id, started)
            self.tell(live, "thread/started", started)

    def resume(self, connection: Connection, request_id: RequestId, params: wire.ThreadResumeParams) -> None:
        with self.at(params.thread_id) as (live, thread):
            if open_again := thread.status == "closed":
                self.set_status(thread, "idle")
            if params.subscribe:
                self.subscribe(live, connection)
            now = thread.model_copy(update={"status": "idle"}) if open_again else thread
            page = self._page(now, params.after_seq or 0, params.limit)
            self._router.respond(connection, request_id, wire.ThreadResumeResponse(**page))
            if params.subscribe and live.active is not None:
                self._approvals.own(live.active.asking, connection)

    def read(self, connection: Connection, request_id: RequestId, params: wire.ThreadReadParams) -> None:
        with self.at(params.thread_id, archived=True) as (_, thread):
            item = params.after_item_id
            items_after = 0 if item is None else self.store.seq_of(params.thread_id, item)
            page = self._page(thread, params.after_seq or 0, params.limit, items_after)
            self._router.respond(connection, request_id, wire.ThreadReadResponse(**page))

    def list(self, connection: Connection, request_id: RequestId, params: wire.ThreadListParams) -> None:
        self.write_ends()
        archived = params.archived if params.archived is not None or params.include_archived else False
        offset, limit = params.offset or 0, params.limit or PAGE
        found = self.store.threads(archived, offset, limit + 1)
        more = offset + limit if len(found) > limit else None
        self._router.respond(connection, request_id, wire.ThreadListResponse(threads=found[:limit], next_offset=more))

    def archive(self, connection: Connection, request_id: RequestId, params: wire.ThreadIdParams) -> None:
        with self.at(params.thread_id) as (live, thread):
            if live.active is not None:
                raise RpcError(INVALID_PARAMS, f"thread {live.thread_id!r} has an active turn; interrupt it first")
            self.set_status(thread, "archived")
            archived = wire.ThreadArchived(thread_id=live.thread_id, archived=True)
            self._router.respond(connection, request_id, archived)
            self.tell(live, "thread/archived", archived, connection)
            self.tell_status(live, "archived", connection)

    def unsubscribe(self, connection: Connection, request_id: RequestId, params: wire.ThreadIdParams) -> None:
        with self.at(params.thread_id, archived=True) as (live, thread):
            over = live.active is None and not live.subscribers.keys() - {connection}
            closes = over and thread.status not in ("closed", "archived")
            if closes:
                self.set_status(thread, "closed")
            live.subscribers.pop(connection, None)
            self._disown(live, connection, for_good=True)
            answer = wire.ThreadUnsubscribeResponse(thread_id=live.thread_id, subscribed=False, closed=over)
            self._router.respond(connection, request_id, answer)
            if closes:
                self.tell(live, "thread/closed", wire.ThreadIdParams(thread_id=live.thread_id), connection)
                self.tell_status(live, "closed", connection)

    def _page(self, thread: wire.AppThread, after: int, limit: int | None, items_after: int = 0) -> dict[str, Any]:
        page = self.store.page(thread.thread_id, after, limit or PAGE, items_after=items_after)
        return {
            "thread": thread, "turns": page.turns, "items": page.items, "last_seq": page.last_seq,
            "next_after_seq": page.next_after,
        }  # fmt: skip
