"""`make fuzz SEED=7 MINUTES=10`: search for input that breaks a test, until the time is over.

The tests that generate their input (properties, programs for stores and logs, requests from the OpenAPI document) run
repeatedly, with more examples than in `make test` and another seed in each round. The first seed is random unless
given, and it is printed: the same seed and the same code give the same examples. In each round, every target of
`tests/fuzzing` gets arbitrary bytes for some seconds, too, guided by coverage. Its corpus stays in .build/fuzz, so a
longer search goes on where the last one ended.

A search that fails prints its example. Add that example as a test of its own, together with the fix.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from tests.fuzzing.seeds import SEEDS

UNTIL = "EVERBELL_FUZZ_UNTIL"
"""The environment variable with the second at which a round ends."""

PROPERTIES = ("tests/unit", "-m", "hypothesis")
PROGRAMS = ("tests/conformance/test_store_machine.py", "tests/conformance/test_log_machine.py")
REQUESTS = ("tests/acceptance/test_openapi.py",)
SEARCHES = (PROPERTIES, REQUESTS, PROGRAMS)

CORPUS = Path(".build/fuzz")
GUIDED_S = 20
"""How long each target is fuzzed in a round."""

SEEDS_MAX = 2**32
HANGING_S = 1_800


def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Begin no further test after the time is over."""
    if _is_over():
        item.session.shouldstop = "the time is over"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A round that was cut short by the end of the time is no failure."""
    if _is_over() and session.testsfailed == 0:
        session.exitstatus = pytest.ExitCode.OK


def _is_over() -> bool:
    return time.time() >= float(os.environ[UNTIL])


def fuzz(seed: int, minutes: float, searches: Sequence[Sequence[str]] = SEARCHES) -> int:
    """Run rounds until the time is over, or a round fails; returns the exit code."""
    until_s = time.time() + minutes * 60
    environment = os.environ | {UNTIL: str(until_s)}
    for number in count():
        for search in searches:
            if time.time() >= until_s:
                _say(f"{number} whole rounds in {minutes:g} min from seed {seed}: nothing found")
                return 0
            _say(f"round {number + 1}, seed {seed + number}: {search[0]}")
            options = ["-q", "-p", "tests.fuzz", "--hypothesis-profile=fuzz", f"--hypothesis-seed={seed + number}"]
            command = [sys.executable, "-m", "pytest", *options, *_patient(), "--maxfail=1", *search]
            if code := subprocess.run(command, env=environment, check=False).returncode:
                _say(f"failed; to repeat it: make fuzz SEED={seed + number} MINUTES={minutes:g}")
                return code
        if searches is SEARCHES and (code := _guided(seed + number, until_s)):
            return code
    return 0


def _guided(seed: int, until_s: float) -> int:
    """Fuzz every target with coverage guidance; returns the exit code of the first that fails."""
    for name, seeds in SEEDS.items():
        corpus = CORPUS / name
        corpus.mkdir(parents=True, exist_ok=True)
        for index, text in enumerate(seeds):
            (corpus / f"seed-{index}").write_bytes(text)
        seconds = min(GUIDED_S, int(until_s - time.time()))
        if seconds < 1:
            break
        _say(f"seed {seed}: {name}, {seconds} s")
        command = [sys.executable, "-m", "tests.fuzzing", name, str(seconds), str(seed), str(corpus)]
        with (CORPUS / f"{name}.log").open("wb") as told:
            code = subprocess.run(command, stdout=told, stderr=told, check=False).returncode
        if code:
            _say(f"{name} failed: see {CORPUS / name}.log, and the input in {corpus}/finding-*")
            return code
    return 0


def _patient() -> list[str]:
    """The timeout options: a test with many examples takes longer than in an ordinary run."""
    return [f"--timeout={HANGING_S}", "-o", f"faulthandler_timeout={HANGING_S + 60}"]


def _say(line: str) -> None:
    sys.stdout.write(f"fuzz: {line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Search for examples that break a test, until the time is over.")
    parser.add_argument("--seed", type=int, default=None, help="of the first round; random by default")
    parser.add_argument("--minutes", type=float, default=1.0)
    arguments = parser.parse_args()
    seed = random.randrange(SEEDS_MAX) if arguments.seed is None else arguments.seed
    _say(f"SEED={seed} MINUTES={arguments.minutes:g}")
    return fuzz(seed, arguments.minutes)


if __name__ == "__main__":
    sys.exit(main())
