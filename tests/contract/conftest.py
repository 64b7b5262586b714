"""Prints what the contract tests ran and set aside."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.contract.aside import FILES, WHOLE_FILES
from tests.contract.fixtures import READERS, folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("passed", [])
    passed_in = Counter(report.nodeid.split("::")[0].removesuffix(".py").replace("/", ".") for report in reports)
    if not passed_in.keys() & {module for modules in READERS.values() for module in modules}:
        return
    terminalreporter.section("contract cases")
    with_lists = set()
    for cases in FILES:
        if cases.ran or cases.aside:
            with_lists.add(cases.fixture)
            for line in cases.report():
                terminalreporter.write_line(line)
    for fixture, modules in sorted(READERS.items()):
        if passed := sum(passed_in[module] for module in modules):
            where = ", ".join(sorted(module.rpartition(".")[2] for module in modules))
            rest = "" if fixture in with_lists else ", nothing set aside"
            terminalreporter.write_line(f"{fixture}: {passed} tests passed in {where}{rest}")
    home = folder()
    for fixture in sorted(path.name for path in home.iterdir()) if home else ():
        if fixture not in READERS:
            terminalreporter.write_line(f"{fixture}: {WHOLE_FILES.get(fixture, 'read by no test of this session')}")
