"""Which runs a store need not keep any longer, and their removal, tree by tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vv_agent.checkpoint.record import Filter, Head, State
from vv_agent.checkpoint.store import CheckpointStore

_PAGE = 500


@dataclass(frozen=True, slots=True)
class Rule:
    """Runs that ended `older_than` ms ago or earlier, but for the `keep` newest ones.

    Only whole trees that are over count, whatever the rule: never a run that works, is ready or waits. `statuses` and
    `queue` (None: any) say which runs are meant; `keep` counts the ended runs among them, by the time of their start.
    """

    older_than: int = 0
    keep: int = 0
    statuses: frozenset[str] | None = None
    queue: str | None = None


def prune(store: CheckpointStore, rule: Rule, *, dry_run: bool = False) -> Iterator[Head]:
    """Remove the runs of a rule with all that is below them, newest first, each in one transaction; their heads as they
    were. May be stopped at any time and begun again; two at once do no harm. A dry run removes nothing."""
    before = store.now() - rule.older_than + 1
    wanted = Filter(states=frozenset({State.ENDED}), statuses=rule.statuses, queue=rule.queue, roots=True)
    for number, head in enumerate(_all(store, wanted)):
        if number < rule.keep or head.updated_at >= before:
            continue
        if _is_over(store, head.key, before) if dry_run else store.delete(head.key, ended_before=before):
            yield head


def _is_over(store: CheckpointStore, root: str, before: int) -> bool:
    tree = store.find(Filter(root_key=root, limit=1 << 20))
    return all(head.state is State.ENDED and head.updated_at < before for head in tree)


def _all(store: CheckpointStore, wanted: Filter) -> Iterator[Head]:
    """Every head of a filter, newest first, page by page; several may be of the same millisecond."""
    seen: set[str] = set()
    limit, before = _PAGE, wanted.before
    while True:
        page = store.find(replace(wanted, limit=limit, before=before))
        fresh = [head for head in page if head.key not in seen]
        yield from fresh
        if len(page) < limit:
            return
        limit = limit if fresh else limit * 2
        before = page[-1].created_at + 1
        seen = {head.key for head in page if head.created_at == page[-1].created_at} | (seen if not fresh else set())
