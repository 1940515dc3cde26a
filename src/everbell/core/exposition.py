"""The text format of Prometheus: names, help texts and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate


def metric(name: str, kind: str, help: str, value: float) -> list[str]:
    """A metric with one sample."""
    return [
        f"# HELP {name} {help}",
        f"# TYPE {name} {kind}",
        f"{name} {value:.15g}",  # Bytes of memory have more digits than the six that `g` alone would keep.
    ]


def labelled(name: str, kind: str, help: str, label: str, samples: Mapping[str, float]) -> list[str]:
    """A metric with a sample for each value of a label."""
    lines = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
    return lines + [f'{name}{{{label}="{_escaped(text)}"}} {value}' for text, value in samples.items()]


def of_queues(name: str, help: str, samples: Mapping[tuple[str, str], float]) -> list[str]:
    """A gauge with a sample for each queue: a pair of tenant and name."""
    lines = [f"# HELP {name} {help}", f"# TYPE {name} gauge"]
    return lines + [
        f'{name}{{tenant="{_escaped(tenant)}",queue="{_escaped(queue)}"}} {value:.15g}'
        for (tenant, queue), value in samples.items()
    ]


def histogram(
    name: str,
    help: str,
    bounds: Sequence[float],
    samples: Mapping[tuple[str, str], tuple[Sequence[int], float]],
) -> list[str]:
    """A histogram for each pair of tenant and queue: the counts of its buckets, the last unbounded, and the sum."""
    lines = [f"# HELP {name} {help}", f"# TYPE {name} histogram"]
    for (tenant, queue), (buckets, total) in samples.items():
        text = f'tenant="{_escaped(tenant)}",queue="{_escaped(queue)}"'
        reached = list(accumulate(buckets))
        for bound, count in zip((*(f"{bound:g}" for bound in bounds), "+Inf"), reached, strict=True):
            lines.append(f'{name}_bucket{{{text},le="{bound}"}} {count}')
        lines.append(f"{name}_sum{{{text}}} {total:.15g}")
        lines.append(f"{name}_count{{{text}}} {reached[-1]}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
