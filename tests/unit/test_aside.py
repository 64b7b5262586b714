"""The list of what the contract tests set aside keeps itself honest."""

from __future__ import annotations

import pytest

from tests.contract import aside


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> aside.Cases:
    monkeypatch.setattr(aside, "FILES", [])
    return aside.Cases("x.json", differs={"old": "ours is better", "gone": "there is none"})


def test_a_listed_case_that_fails_is_counted_with_its_reason(cases: aside.Cases) -> None:
    with cases.run("old"):
        raise AssertionError
    with cases.run("free"):
        pass
    assert list(cases.report()) == [
        "x.json: 2 cases, 1 run, 1 set aside",
        "    differs on purpose: ours is better: old",
        "    listed, but not met in this session: gone",
    ]


def test_a_listed_case_that_passes_fails_the_test(cases: aside.Cases) -> None:
    with pytest.raises(pytest.fail.Exception, match="old is listed as set aside, but it passes"), cases.run("old"):
        pass


def test_a_case_that_is_not_listed_keeps_its_failure(cases: aside.Cases) -> None:
    with pytest.raises(ValueError, match="wrong"), cases.run("free"):
        raise ValueError("wrong")


def test_nothing_is_set_aside_without_a_reason_and_an_entry_without_a_case_is_shown(cases: aside.Cases) -> None:
    with pytest.raises(pytest.fail.Exception, match="neither run nor listed"):
        cases.show("free")
    cases.show("old")
    assert list(cases.report())[-1] == "    listed, but not met in this session: gone"
