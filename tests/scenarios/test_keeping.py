"""What a store keeps: removal of old runs, and runs that go into another store as JSON and go on there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.contract.test_store import claimed, new
from tests.golden.jobs import make_workspace
from tests.redis_server import RedisServer, database
from tests.shell import Shell
from vv_agent.checkpoint.exchange import Export, export_runs, import_runs, remove_exported
from vv_agent.checkpoint.record import Change, End, Filter, Park, ParkReason, Signal
from vv_agent.checkpoint.retention import Rule, prune
from vv_agent.checkpoint.store import CheckpointStore, open_store
from vv_agent.errors import CheckpointError
from vv_agent.testing import FakeClock

GOLDEN = Path(__file__).parents[1] / "golden/runs-v1.json"
DAY = 86_400_000


def below(root: str, number: int = 0, **more: Any) -> Any:
    return new(f"c_{root}{number}".ljust(34, "0"), root_key=root, parent_key=root, **more)


def end(store: CheckpointStore, key: str, status: str = "completed") -> None:
    claim = claimed(store, key, token=os.urandom(16).hex()).claim
    store.save(claim, Change(1, End(), ending=True, status=status))


# Retention.


def test_a_tree_goes_with_everything_below_it(store: CheckpointStore) -> None:
    store.create([new("k"), new("other")])
    store.create([below("k", blobs={"a": b"1"}), below("k", 1)])
    claim = claimed(store, below("k").key).claim
    with pytest.raises(CheckpointError, match="checkpoint_claim_active"):
        store.delete("k")
    store.save(claim, Change(1, End(), ending=True))
    assert store.delete("k")
    assert [head.key for head in store.find()] == ["other"]
    assert store.entries(below("k").key) == ()


def test_a_list_of_roots_leaves_out_what_is_below(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new("k")])
    clock.advance(1)
    store.create([below("k"), below("k", 1)])
    clock.advance(1)
    store.create([new("l")])
    assert [head.key for head in store.find(Filter(roots=True))] == ["l", "k"]
    assert [head.key for head in store.find(Filter(roots=True, limit=1, before=clock.now))] == ["k"]


def test_only_what_is_over_and_old_is_removed_and_the_newest_are_kept(store: CheckpointStore, clock: FakeClock) -> None:
    for name in ("works", "waits", "ready", "old", "failed", "recent"):
        store.create([new(name)])
        clock.advance(10)
    claimed(store, "works", token=os.urandom(16).hex())
    store.save(claimed(store, "waits", token=os.urandom(16).hex()).claim, Change(1, Park(ParkReason.INPUT)))
    end(store, "old")
    end(store, "failed", "failed")
    clock.advance(2 * DAY)
    end(store, "recent")
    clock.advance(10)

    def gone(rule: Rule) -> list[str]:
        planned = [head.key for head in prune(store, rule, dry_run=True)]
        before = len(store.find())
        assert [head.key for head in prune(store, rule)] == planned
        assert len(store.find()) == before - len(planned)
        return planned

    assert gone(Rule(older_than=3 * DAY)) == []
    assert gone(Rule(older_than=DAY, keep=3)) == []
    assert gone(Rule(older_than=DAY, statuses=frozenset({"failed"}))) == ["failed"]
    assert gone(Rule(older_than=DAY, queue="elsewhere")) == []
    assert gone(Rule(older_than=DAY, keep=1)) == ["old"]
    assert gone(Rule()) == ["recent"]
    assert sorted(head.key for head in store.find()) == ["ready", "waits", "works"]


def test_a_tree_of_which_one_still_works_is_kept(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new("k")])
    store.create([below("k"), below("k", 1)])
    end(store, "k")
    end(store, below("k").key)
    clock.advance(2 * DAY)
    assert [head.key for head in prune(store, Rule(DAY), dry_run=True)] == []
    assert [head.key for head in prune(store, Rule(DAY))] == []
    end(store, below("k", 1).key)
    clock.advance(10)
    assert [head.key for head in prune(store, Rule(DAY))] == [], "the last of them ended a moment ago"
    clock.advance(DAY)
    assert [head.key for head in prune(store, Rule(DAY))] == ["k"]
    assert store.find() == ()


def test_many_runs_of_one_millisecond_are_all_found(store: CheckpointStore, clock: FakeClock) -> None:
    keys = [f"k{number}" for number in range(1_030)]
    for key in keys:
        store.create([new(key)])
        end(store, key)
    clock.advance(1)
    assert sorted(head.key for head in prune(store, Rule(), dry_run=True)) == sorted(keys)


# Exchange.


@contextmanager
def opened(kind: str, tmp_path: Path, server: RedisServer) -> Iterator[CheckpointStore]:
    if kind == "postgres":
        if servers.postgres_url() is None:
            pytest.skip(servers.MISSING["postgres"])
        with servers.postgres_schema() as url, closing(open_store(url)) as store:
            yield store
        return
    url = server.url(database()) if kind == "redis" else f"sqlite:///{tmp_path}/there.db"
    with closing(open_store("memory://" if kind == "memory" else url)) as store:
        yield store


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def there(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> Iterator[CheckpointStore]:
    """A store that runs come into, on its own clock."""
    with opened(request.param, tmp_path, redis_server) as store:
        yield store


def golden() -> Export:
    return Export.read(GOLDEN.read_bytes())


def test_a_run_comes_out_as_it_went_in(there: CheckpointStore) -> None:
    export = golden()
    assert import_runs(there, export) == ("tree", "lost", "done")
    again = export_runs(there, ["tree", "lost", "done"])
    assert again.definitions == export.definitions
    for one, other in zip(export.runs, again.runs, strict=True):
        assert one.head == other.head
        assert (one.entries, one.blobs, one.journal) == (other.entries, other.blobs, other.journal)
        assert [(s.id, s.kind, s.body) for s in one.signals] == [(s.id, s.kind, s.body) for s in other.signals]
    assert import_runs(there, export) == ("tree", "lost", "done"), "what stands there unchanged is no conflict"


def test_a_key_that_is_taken_is_refused_and_nothing_is_done(there: CheckpointStore) -> None:
    there.create([new("done", queue=None)])
    with pytest.raises(CheckpointError, match="checkpoint_already_exists: a run with the key 'done'"):
        import_runs(there, golden())
    assert [head.key for head in there.find()] == ["done"]


def test_an_imported_run_that_went_on_is_not_put_back(there: CheckpointStore) -> None:
    import_runs(there, golden())
    there.post("tree", Signal("s", "steer", b"x"))
    with pytest.raises(CheckpointError, match="checkpoint_already_exists: a run with the key 'tree'"):
        import_runs(there, golden())


def test_a_run_that_is_worked_on_is_not_exported_and_one_whose_worker_died_is_due_at_once(
    store: CheckpointStore, clock: FakeClock
) -> None:
    import_runs(store, golden())
    keys = {head.key for head in store.find(Filter(root_key="tree"))}
    store.post("tree", Signal("s", "answer", b"x"))
    claimed(store, "tree", cycle=2)
    with pytest.raises(CheckpointError, match="checkpoint_claim_active: run 'tree' is being worked on"):
        export_runs(store, ["tree"])
    clock.advance(60_000)
    export = export_runs(store, [max(keys)])
    assert {record.head.key for record in export.runs} == keys
    assert store.delete("tree")
    clock.advance(60_000)
    import_runs(store, export)
    (head,) = store.take_due(["vv-agent"], 5) if export.runs[0].head.queue else (store.look("tree").head,)  # type: ignore[union-attr]
    assert head.lease_until <= clock.now
    assert claimed(store, "tree", cycle=2, token="b" * 32).recovered


def test_only_what_did_not_change_since_is_removed(there: CheckpointStore) -> None:
    import_runs(there, golden())
    done, tree = (export_runs(there, [key]).runs for key in ("done", "tree"))
    there.post("tree", Signal("s", "steer", b"x"))
    assert remove_exported(there, done)
    assert not remove_exported(there, done)
    assert not remove_exported(there, tree)
    assert sorted(head.key for head in there.find(Filter(roots=True))) == ["lost", "tree"]


def _edited(**changes: Any) -> str:
    found = json.loads(GOLDEN.read_text())
    found["runs"][0]["head"] |= changes
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "the file: Invalid JSON"),
        ('{"format": "vv-agent.runs.v9", "definitions": {}, "runs": []}', "format: Input should be"),
        (_edited(entry_n=9), "run 'tree' has 9 entries, not all of them are here"),
        (_edited(schema=99), "run 'tree' has schema 99; upgrade vv-agent"),
        (_edited(signal_n=0), "run 'tree' has 0 signals, 1 are here"),
        (_edited(cycle="2"), "runs/0/head/"),
        (_edited(parent_key="gone"), "run 'tree' stands without the run above it"),
        (_edited(definition="d" * 64), f"the definition '{'d' * 64}' is not in it"),
    ],
    ids=["no json", "format", "entries", "schema", "signals", "type", "parent", "definition"],
)
def test_a_file_that_is_no_export_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Export.read(text)
    assert caught.value.code == "export_invalid"
    assert said in caught.value.message


# The record of this release goes on in every store, by the commands.


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
def test_a_record_of_an_earlier_release_goes_on(kind: str, tmp_path: Path, redis_server: RedisServer) -> None:
    make_workspace()
    with opened(kind, tmp_path, redis_server) as store:
        shell = Shell(tmp_path, VV_AGENT_STORE=store.url, VV_AGENT_IMPORTS="tests")
        imported = shell("runs", "import", str(GOLDEN))
        assert imported.returncode == 0, imported
        assert [line.split()[:2] for line in imported.stdout.splitlines()[1:]] == [
            ["tree", "running"], ["lost", "reconciliation_required"], ["done", "completed"],
        ]  # fmt: skip
        waits = shell("resume", "tree", "--json")
        assert (waits.returncode, waits.json()["status"]) == (3, "running")
        (asked,) = shell("runs", "show", "tree", "--json").json()["approvals"]
        assert waits.json()["next"][0]["command"] == f"vv-agent runs approve tree {asked['interruption_id']} --allow"
        assert shell("runs", "approve", "tree", asked["interruption_id"], "--allow").returncode == 0
        done = shell("resume", "tree", "--json")
        assert done.returncode == 0, done
        assert "Be brief." in done.json()["final_output"]
        (observed,) = [shell("runs", "show", "lost", "--json").json()["observation"]["operation_id"]]
        assert shell("runs", "reconcile", "lost", observed, "--done", "it flies").returncode == 0
        assert shell("resume", "lost", "--json").json()["final_output"] == "Up."
        assert shell("runs", "show", "done", "--json").json()["final_answer"] == "An essay."


def test_a_tree_is_listed_by_its_root_shown_with_what_is_below_and_cancelled_as_one(tmp_path: Path) -> None:
    shell = Shell(tmp_path, VV_AGENT_IMPORTS="tests")
    assert shell("runs", "import", str(GOLDEN)).returncode == 0
    assert [row["key"] for row in shell("runs", "list", "--json").json()] == ["done", "lost", "tree"]
    (clerk,) = (row["key"] for row in shell("runs", "list", "--all", "--json").json() if row["key"].startswith("c_"))
    shown = shell("runs", "show", "tree")
    assert shown.returncode == 3
    below, wants = shown.stdout.partition("\nbelow\n")[2].split("\n")[1], shown.stdout.partition("\nnext\n")[2]
    assert below.split() == [clerk, "clerk", "running", "approval"]
    assert wants.startswith(f'  {clerk} below it wants to call publish {{"title": "the news"}}; let it:\n')
    machine = shell("runs", "show", "tree", "--json").json()
    assert [(row["key"], row["agent"], row["parent_key"]) for row in machine["below"]] == [(clerk, "clerk", "tree")]
    assert [asked["key"] for asked in machine["approvals"]] == [clerk]
    assert shell("runs", "show", clerk, "--json").json()["below"] == []
    assert shell("runs", "cancel", "tree").returncode == 0
    assert shell("resume", "tree").returncode == 1
    ended = shell("runs", "list", "--all", "--json").json()
    assert {row["key"]: row["state"] for row in ended} == {
        "done": "ended", "lost": "parked", "tree": "ended", clerk: "ended",
    }  # fmt: skip


def test_a_run_moves_from_one_store_to_another(tmp_path: Path) -> None:
    shell = Shell(tmp_path, VV_AGENT_IMPORTS="tests")
    assert shell("runs", "import", str(GOLDEN)).returncode == 0
    moved = shell("runs", "export", "tree", "--out", "tree.json", "--move")
    assert (moved.returncode, moved.stdout) == (0, "tree.json: tree; removed from this store\n")
    assert (tmp_path / "tree.json").stat().st_mode & 0o777 == 0o600
    assert [row["key"] for row in shell("runs", "list", "--all", "--json").json()] == ["done", "lost"]
    again = shell("runs", "export", "lost", "--out", "tree.json")
    assert (again.returncode, again.stdout) == (1, "")
    assert "tree.json exists; give a name that is free" in again.stderr
    other = {"VV_AGENT_STORE": f"sqlite:///{tmp_path}/other.db"}
    assert shell("runs", "import", "tree.json", **other).returncode == 0
    assert shell("runs", "list", "--json", **other).json()[0]["waits_for"] == "children"
    wrong = shell("runs", "export", "tree")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "checkpoint_not_found: there is no run 'tree' in this store; nothing was written" in wrong.stderr


def test_prune_says_what_it_would_remove_and_removes_it(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert shell("runs", "import", str(GOLDEN)).returncode == 0
    for words, said in (
        (["prune"], "there is no rule"), (["prune", "--older-than", "soon"], "'soon' is no age"),
        (["prune", "--keep", "0", "--status", "running"], "'running' is no status of a run that is over"),
    ):  # fmt: skip
        refused = shell("runs", *words)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert said in refused.stderr
    planned = shell("runs", "prune", "--keep", "0", "--dry-run", "--json").json()
    assert (planned["dry_run"], [run["key"] for run in planned["runs"]]) == (True, ["done"])
    assert "1 runs would be removed" in shell("runs", "prune", "--older-than", "0s", "--dry-run").stdout
    assert "0 runs were removed" in shell("runs", "prune", "--older-than", "9999d").stdout
    assert "1 runs were removed" in shell("runs", "prune", "--older-than", "0s", "--status", "completed").stdout
    assert [row["key"] for row in shell("runs", "list", "--json").json()] == ["lost", "tree"]
