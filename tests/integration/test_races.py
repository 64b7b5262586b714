"""Two callers of the store at the same moment, a thousand times on each store: nobody is stuck, nothing happens twice."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import World, until
from vv_agent import Agent, CheckpointConfig, NoToolPolicy, RunConfig, Runner
from vv_agent.checkpoint.record import (
    Change,
    Claim,
    Claimed,
    Commit,
    End,
    NewRun,
    Park,
    ParkReason,
    Progress,
    Refused,
    Signal,
    State,
)
from vv_agent.checkpoint.store import CheckpointStore, open_store
from vv_agent.errors import CheckpointError, ClaimLost, RunFinished, SignalsWaiting
from vv_agent.runtime.inbox import steer_signal
from vv_agent.testing import ScriptedProvider

ROUNDS = 1000
RUNS = 300
LEASE = 60_000


def new(key: str, run_id: str | None = None) -> NewRun:
    return NewRun(
        key=key, run_id=run_id or f"run_{key}", definition="d" * 64, definition_body=b"def", body=b"head", queue="q",
        log=(b"first",),
    )  # fmt: skip


def claimed(store: CheckpointStore, key: str, token: str = "a" * 32, cycle: int = 1) -> Claim:
    answer = store.claim(key, cycle, token, owner="host/1/1", lease=LEASE)
    assert isinstance(answer, Claimed), answer
    return answer.claim


class Pair:
    """Two threads that do one thing each at the same moment, round after round."""

    def __init__(self) -> None:
        self._go = threading.Barrier(2)

    def run(
        self, rounds: int, first: Callable[[int], object], second: Callable[[int], object]
    ) -> list[tuple[Any, Any]]:
        """The answers (or errors) of both, by round."""
        answers: list[list[Any]] = [[], []]

        def play(side: int, act: Callable[[int], object]) -> None:
            dice = random.Random(side)
            for number in range(rounds):
                self._go.wait(60)
                for _ in range(dice.randrange(300)):  # who is first must not depend on who was woken first
                    pass
                try:
                    answers[side].append(act(number))
                except CheckpointError as error:
                    answers[side].append(error)

        other = threading.Thread(target=play, args=(1, second))
        usual = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # threads of one interpreter race only if it switches between them often
        try:
            other.start()
            play(0, first)
            other.join()
        finally:
            sys.setswitchinterval(usual)
        return list(zip(*answers, strict=True))


def tell(name: str, store: CheckpointStore, outcomes: Counter[str], began: float) -> None:
    print(
        f"\n{name} on {store.url.split(':')[0]}: {sum(outcomes.values())} rounds in {time.monotonic() - began:.1f} s, "
        f"{dict(outcomes)}"
    )


def test_a_signal_against_a_park_is_never_lost(real_store: CheckpointStore) -> None:
    store, began = real_store, time.monotonic()
    claims = []
    for n in range(ROUNDS):
        store.create([new(f"k{n}")])
        claims.append(claimed(store, f"k{n}"))
    Pair().run(
        ROUNDS,
        lambda n: store.save(claims[n], Change(1, Park(ParkReason.INPUT))),
        lambda n: store.post(f"k{n}", Signal("s", "answer", b"yes")),
    )
    outcomes: Counter[str] = Counter()
    for n in range(ROUNDS):
        head = store.load(f"k{n}").head  # type: ignore[union-attr]
        assert (head.state, head.signal_n) == (State.READY, 1), f"round {n} is stuck: {head}"
        assert head.due is not None
        outcomes["park first" if head.reason is ParkReason.INPUT else "signal first"] += 1
    assert len(store.take_due(["q"], ROUNDS * 2)) == ROUNDS
    tell("signal against park", store, outcomes, began)


def test_a_cancel_against_an_end_is_refused_or_obeyed(real_store: CheckpointStore) -> None:
    store, began = real_store, time.monotonic()
    claims = []
    for n in range(ROUNDS):
        store.create([new(f"k{n}")])
        claims.append(claimed(store, f"k{n}"))

    def end(n: int) -> str:
        try:
            store.save(claims[n], Change(1, End(), status="completed", ending=True, log=(b"done",)))
        except SignalsWaiting:
            change = Change(1, End(), status="failed", ending=True, log=(b"cancelled",), consumed=("c",))
            store.save(claims[n], change)
            return "cancelled"
        return "completed"

    rounds = Pair().run(ROUNDS, end, lambda n: store.post(f"k{n}", Signal("c", "cancel")))
    outcomes: Counter[str] = Counter()
    for n, (ended, posted) in enumerate(rounds):
        head = store.load(f"k{n}").head  # type: ignore[union-attr]
        assert (head.state, head.signal_n) == (State.ENDED, 0)
        if ended == "completed":
            assert isinstance(posted, RunFinished), "an accepted cancel was lost"
        else:
            assert not isinstance(posted, CheckpointError)
            assert head.status == "failed"
        assert len(store.entries(f"k{n}")) == 2
        outcomes[ended] += 1
    tell("cancel against end", store, outcomes, began)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["steer", "follow_up"])
def test_a_word_against_an_end_is_refused_or_taken(real_store: CheckpointStore, kind: str) -> None:
    store, began = real_store, time.monotonic()
    claims = []
    for n in range(ROUNDS):
        store.create([new(f"k{n}")])
        claims.append(claimed(store, f"k{n}"))

    def end(n: int) -> str:
        try:
            store.save(claims[n], Change(1, End(), status="completed", ending=True, log=(b"done",)))
        except SignalsWaiting:
            store.save(claims[n], Change(1, Commit(), log=(b"goes on",), consumed=("s",)))
            return "goes on"
        return "completed"

    rounds = Pair().run(ROUNDS, end, lambda n: store.post(f"k{n}", Signal("s", kind)))
    outcomes: Counter[str] = Counter()
    for n, (ended, posted) in enumerate(rounds):
        head = store.load(f"k{n}").head  # type: ignore[union-attr]
        assert isinstance(posted, RunFinished) == (ended == "completed"), "an accepted word was lost"
        assert (head.state, head.signal_n) == (State.ENDED if ended == "completed" else State.READY, 0)
        assert len(store.entries(f"k{n}")) == 2
        outcomes[ended] += 1
    tell(f"{kind} against end", store, outcomes, began)


@pytest.mark.slow
def test_a_word_against_a_park_is_kept(real_store: CheckpointStore) -> None:
    store, began = real_store, time.monotonic()
    claims = []
    for n in range(ROUNDS):
        store.create([new(f"k{n}")])
        claims.append(claimed(store, f"k{n}"))
    Pair().run(
        ROUNDS,
        lambda n: store.save(claims[n], Change(1, Park(ParkReason.INPUT))),
        lambda n: store.post(f"k{n}", Signal("s", "steer")),
    )
    for n in range(ROUNDS):
        head = store.load(f"k{n}").head  # type: ignore[union-attr]
        assert (head.state, head.due, head.signal_n) == (State.PARKED, None, 1)
        store.post(f"k{n}", Signal("a", "answer"))
        answer = store.claim(f"k{n}", 1, "b" * 32, owner="host/2/2", lease=LEASE)
        assert isinstance(answer, Claimed)
        assert [signal.kind for signal in answer.snapshot.signals] == ["steer", "answer"]
    tell("word against park", store, Counter(kept=ROUNDS), began)


@pytest.mark.slow
def test_a_word_against_the_end_of_a_run_is_refused_or_answered(real_store: CheckpointStore, tmp_path: Path) -> None:
    """The same through the Runner: the run ends, and what was accepted stands in its transcript."""
    store, began = real_store, time.monotonic()
    steps = ["One.", "Two."]
    runner = Runner(model_provider=ScriptedProvider(steps), workspace=tmp_path)
    agent = Agent(name="talker", instructions="Talk.", no_tool_policy=NoToolPolicy.FINISH)

    def run(n: int) -> tuple[str, list[str]]:
        config = RunConfig(checkpoint_config=CheckpointConfig(key=f"k{n}", store=store))
        result = runner.run_sync(agent, "Go.", run_config=config)
        return result.status.value, [message.content for message in result.messages if message.role != "system"]

    def steer(n: int) -> None:
        until(lambda: store.look(f"k{n}"), "it was created", every=0)
        time.sleep(random.Random(n).random() * spread)  # anywhere in the run's life
        store.post(f"k{n}", steer_signal("s", "More."))

    run(-2)
    first = time.monotonic()
    run(-1)
    spread = time.monotonic() - first
    outcomes: Counter[str] = Counter()
    for n, (ended, posted) in enumerate(Pair().run(RUNS, run, steer)):
        status, texts = ended
        assert (status, store.load(f"k{n}").head.signal_n) == ("completed", 0)  # type: ignore[union-attr]
        assert texts.count("More.") == (0 if isinstance(posted, RunFinished) else 1), "an accepted word was lost"
        outcomes["refused" if isinstance(posted, RunFinished) else texts[-2]] += 1
    tell("steer against the end of a run", store, outcomes, began)


def test_of_two_claims_one_is_given(real_store: CheckpointStore) -> None:
    store, began = real_store, time.monotonic()
    for n in range(ROUNDS):
        store.create([new(f"k{n}")])

    def take(owner: str, letter: str) -> Callable[[int], object]:
        return lambda n: store.claim(f"k{n}", 1, letter * 32, owner=owner, lease=LEASE)

    rounds = Pair().run(ROUNDS, take("host/1/1", "a"), take("host/2/2", "b"))
    outcomes: Counter[str] = Counter()
    for n, answers in enumerate(rounds):
        given = [answer for answer in answers if isinstance(answer, Claimed)]
        refused = [answer for answer in answers if isinstance(answer, Refused)]
        assert (len(given), [r.why for r in refused]) == (1, ["live_lease"]), answers
        head = store.load(f"k{n}").head  # type: ignore[union-attr]
        assert (head.token, head.revision) == (given[0].claim.token, 1)
        outcomes[given[0].claim.token[0]] += 1
    tell("two claims", store, outcomes, began)


def test_of_two_takers_of_an_ended_lease_one_gets_it_and_the_old_owner_saves_first_or_never(
    real_store: CheckpointStore,
) -> None:
    store, began = real_store, time.monotonic()
    claims = []
    for n in range(ROUNDS):
        store.create([new(f"k{n}")])
        claims.append(claimed(store, f"k{n}"))
    store.expire("host/1/1")
    rounds = Pair().run(
        ROUNDS,
        lambda n: store.save(claims[n], Change(1, Commit(), log=(b"old",))),
        lambda n: store.claim(f"k{n}", 1, "b" * 32, owner="host/2/2", lease=LEASE),
    )
    outcomes: Counter[str] = Counter()
    for n, (saved, taken) in enumerate(rounds):
        head = store.load(f"k{n}").head  # type: ignore[union-attr]
        logs = [entry.body for entry in store.entries(f"k{n}")]
        if isinstance(taken, Claimed):
            assert isinstance(saved, ClaimLost)
            assert (head.cycle, logs, taken.recovered) == (1, [b"first"], True)
            outcomes["taken over"] += 1
        else:
            assert not isinstance(saved, CheckpointError)
            assert taken.why == "wrong_cycle"
            assert (head.cycle, logs) == (2, [b"first", b"old"])
            outcomes["saved first"] += 1
    tell("late save against takeover", store, outcomes, began)


def test_a_save_whose_answer_was_lost_is_repeated_without_effect(real_store: CheckpointStore) -> None:
    """The repeat races with the worker that goes on."""
    store, began = real_store, time.monotonic()
    last = []
    for n in range(ROUNDS):
        store.create([new(f"k{n}")])
        saved = store.save(claimed(store, f"k{n}"), Change(1, Progress(), log=(b"receipt",)))
        assert saved.claim is not None
        last.append(saved.claim)
        store.save(saved.claim, Change(2, Commit(), log=(b"commit",)))
    rounds = Pair().run(
        ROUNDS,
        lambda n: store.save(last[n], Change(2, Commit(), log=(b"commit",))),
        lambda n: store.claim(f"k{n}", 2, "b" * 32, owner="host/2/2", lease=LEASE),
    )
    outcomes: Counter[str] = Counter()
    for n, (repeat, taken) in enumerate(rounds):
        assert isinstance(taken, Claimed)
        assert not isinstance(repeat, CheckpointError), repeat
        assert repeat.claim is None, "the repeat must not hand out a claim"
        head = store.load(f"k{n}").head  # type: ignore[union-attr]
        assert (head.cycle, head.token) == (2, "b" * 32)
        assert [e.body for e in store.entries(f"k{n}")] == [b"first", b"receipt", b"commit"]
        outcomes["before the claim" if repeat.head.token is None else "after the claim"] += 1
    tell("repeated save", store, outcomes, began)


def test_of_two_creators_of_a_key_one_is_told_it_exists(real_store: CheckpointStore) -> None:
    store, began = real_store, time.monotonic()
    rounds = Pair().run(
        ROUNDS, lambda n: store.create([new(f"k{n}", "run_a")]), lambda n: store.create([new(f"k{n}", "run_b")])
    )
    outcomes: Counter[str] = Counter()
    for n, answers in enumerate(rounds):
        lost = [a for a in answers if isinstance(a, CheckpointError)]
        assert [e.code for e in lost] == ["checkpoint_already_exists"], lost
        winner = store.load(f"k{n}").head.run_id  # type: ignore[union-attr]
        assert winner == ("run_a" if answers[1] is lost[0] else "run_b")
        outcomes[winner] += 1
    tell("two creators", store, outcomes, began)


def test_the_same_run_created_twice_at_once_is_one_run(real_store: CheckpointStore) -> None:
    store, began = real_store, time.monotonic()
    rounds = Pair().run(ROUNDS, lambda n: store.create([new(f"k{n}")]), lambda n: store.create([new(f"k{n}")]))
    for n, (one, two) in enumerate(rounds):
        assert not isinstance(one, CheckpointError), one
        assert not isinstance(two, CheckpointError), two
        assert one == two
        assert len(store.entries(f"k{n}")) == 1
    tell("one creator twice", store, Counter(same=len(rounds)), began)


def test_of_two_bodies_of_a_signal_the_first_stands(real_store: CheckpointStore) -> None:
    store, began = real_store, time.monotonic()
    for n in range(ROUNDS):
        store.create([new(f"k{n}")])
    rounds = Pair().run(
        ROUNDS,
        lambda n: store.post(f"k{n}", Signal("s", "decision", b"allow")),
        lambda n: store.post(f"k{n}", Signal("s", "decision", b"deny")),
    )
    outcomes: Counter[str] = Counter()
    for one, two in rounds:
        assert {one.new, two.new} == {True, False}
        assert one.signal.body == two.signal.body
        outcomes[one.signal.body.decode()] += 1
    tell("two bodies of a signal", store, outcomes, began)


def test_a_renewal_and_a_cancel_do_not_disturb_a_save(real_store: CheckpointStore) -> None:
    store, began = real_store, time.monotonic()
    store.create([new("k")])
    claims = [claimed(store, "k")]
    signalled: Counter[str] = Counter()

    def work(n: int) -> None:
        saved = store.save(claims[-1], Change(n + 1, Progress(), log=(b"x",)))
        assert saved.claim is not None
        claims.append(saved.claim)

    def disturb(n: int) -> None:
        answer = store.renew([claims[-1]], lease=LEASE)
        assert not answer.lost
        signalled["signalled" if answer.signalled else "quiet"] += 1
        if n == ROUNDS // 2:
            store.post("k", Signal("c", "cancel"))

    rounds = Pair().run(ROUNDS, work, disturb)
    assert all(answer is None for pair in rounds for answer in pair)
    assert len(store.load("k").log) == ROUNDS + 1  # type: ignore[union-attr]
    tell("renewal against save", store, signalled, began)


def test_renewals_of_the_same_runs_in_another_order_do_not_lock_each_other_out(real_store: CheckpointStore) -> None:
    """A worker whose claims were taken over still renews them, together with their new owner."""
    store, began = real_store, time.monotonic()
    claims = []
    for n in range(8):
        store.create([new(f"k{n}")])
        claims.append(claimed(store, f"k{n}"))
    rounds = Pair().run(
        300, lambda n: store.renew(claims, lease=LEASE), lambda n: store.renew(claims[::-1], lease=LEASE)
    )
    assert [answer for pair in rounds for answer in pair if isinstance(answer, CheckpointError)] == []
    tell("two renewals", store, Counter(fine=len(rounds)), began)


def test_takers_of_due_runs_never_get_the_same_one(real_store: CheckpointStore) -> None:
    store, began = real_store, time.monotonic()
    for n in range(ROUNDS):
        store.create([new(f"k{n}")])
    got: list[list[str]] = [[], []]

    def take(side: int) -> Callable[[int], object]:
        return lambda n: got[side].extend(head.key for head in store.take_due(["q"], 3, hold=600_000))

    Pair().run(ROUNDS // 4, take(0), take(1))
    assert len({*got[0], *got[1]}) == len(got[0]) + len(got[1]) == ROUNDS
    tell("two takers", store, Counter(first=len(got[0]), second=len(got[1])), began)


def _claim_all() -> None:
    """`_claim_all URL LETTER COUNT`: claim every run and say which were given."""
    url, letter, count = sys.argv[1:]
    store = open_store(url)
    given = [
        n
        for n in range(int(count))
        if isinstance(store.claim(f"k{n}", 1, letter * 32, owner=f"host/{letter}/1", lease=LEASE), Claimed)
    ]
    print("given:", *given)


def test_of_two_processes_that_claim_one_is_given(world: World) -> None:
    began = time.monotonic()
    world.store.create([new(f"k{n}") for n in range(ROUNDS)])
    racers = [
        world.start("tests.integration.test_races:_claim_all", world.url, letter, str(ROUNDS)) for letter in ("a", "b")
    ]
    given = []
    for racer in racers:
        assert racer.wait() == 0, racer.said()
        given.append({int(n) for n in racer.said().rpartition("given:")[2].partition("\n")[0].split()})
    assert not given[0] & given[1]
    assert len(given[0] | given[1]) == ROUNDS
    tell("two claiming processes", world.store, Counter(a=len(given[0]), b=len(given[1])), began)


@pytest.mark.parametrize("name", ["runs.db"])
def test_two_processes_may_open_a_new_store_at_once(world: World, tmp_path: Path, name: str) -> None:
    began = time.monotonic()
    for number in range(20):
        url = f"sqlite:///{tmp_path}/{number}_{name}"
        openers = [world.start("tests.integration.test_races:_open", url) for _ in range(2)]
        said = set()
        for opener in openers:
            assert opener.wait() == 0, opener.said()
            said.add(opener.said())
        assert len(said) == 1, "both see the same store id"
    tell("two openers", world.store, Counter(fine=20), began)


def _open() -> None:
    with contextlib.closing(open_store(sys.argv[1])) as store:
        print(store.id)
