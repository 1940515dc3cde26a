"""The text format of Prometheus: names, help texts and samples."""

from __future__ import annotations

from collections.abc import Mapping


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


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
