"""Prints what the contract tests ran, set aside and left pending."""

from __future__ import annotations

import pytest

from tests.contract.aside import FILES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [line for cases in FILES for line in cases.report() if cases.ran or cases.aside or cases.waiting]
    if lines:
        terminalreporter.section("contract cases")
        for line in lines:
            terminalreporter.write_line(line)
