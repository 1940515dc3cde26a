"""`python -m tests.fuzzing NAME SECONDS SEED CORPUS`: fuzz one target. A finding is written to the folder and printed.

Further arguments are files: each is run once, to repeat a finding.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["everbell", "tests.fuzzing"]):
    from tests.fuzzing.targets import TARGETS


def main() -> None:
    name, seconds, seed, corpus, *files = sys.argv[1:]
    Path(corpus).mkdir(parents=True, exist_ok=True)
    # A Python exception of a target ends the process with an error and the input in a file.
    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix={corpus}/finding-", "-max_len=4096"]
    options += ["-rss_limit_mb=2048", "-timeout=25", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, *(files or [corpus])], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
