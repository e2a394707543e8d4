"""Says at the end how many blocks ran, and which did not and why."""

from collections import Counter

import pytest
from page import ELSEWHERE

RAN = Counter()
NOT_RUN = list(ELSEWHERE.items())


@pytest.fixture(scope="session")
def tally():
    return RAN, NOT_RUN


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("code blocks of the documents")
    for language, count in sorted(RAN.items()):
        terminalreporter.line(f"{count:4} {language}: ran")
    for where, reason in NOT_RUN:
        terminalreporter.line(f"     {where}: not run: {reason}")
    terminalreporter.line(f"{len(NOT_RUN):4} not run")
