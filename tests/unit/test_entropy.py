"""Randomness: fresh for every caller."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: one that has threads should not fork.
FORKS = """
import os
from everbell.entropy import SystemEntropy
entropy = SystemEntropy()
entropy.nonce()
child = os.fork()
os.write(1, f"{entropy.nonce().hex()} {entropy.jitter()}\\n".encode())  # At once, for both speak at the same time.
if child:
    os.waitpid(child, 0)
"""


def test_a_child_process_gets_other_random_bytes_than_its_parent() -> None:
    said = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True).stdout.split()
    assert len(said) == 4
    assert len(set(said)) == 4
