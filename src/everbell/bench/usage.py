"""The resources of processes, as the kernel counts them: CPU time, memory now and at its peak."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PEAK_RESET = "5"
_KIB = 1_024


class Usage(Struct, frozen=True):
    """The resources of several processes together."""

    cpu_s: float
    rss_bytes: int
    peak_bytes: int


def family_of(pid: int) -> list[int]:
    """The process and its children; a server's gateways are children of its engine."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    children = listed.read_text() if listed.exists() else ""
    return [pid, *map(int, children.split())]


def usage_of(pids: list[int]) -> Usage:
    """The resources of these processes together."""
    cpu_s, rss, peak = 0.0, 0, 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s += (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND
        status = Path(f"/proc/{pid}/status").read_text()
        rss += _kilobytes(status, "VmRSS:") * _KIB
        peak += _kilobytes(status, "VmHWM:") * _KIB
    return Usage(cpu_s, rss, peak)


def forget_peak(pids: list[int]) -> None:
    """Measure the peak from now on."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text(_PEAK_RESET)


def _kilobytes(status: str, name: str) -> int:
    _, _, rest = status.partition(name)
    return int(rest.split()[0]) if rest else 0
