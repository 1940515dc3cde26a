"""Reading a server's metrics back: values by name, and quantiles out of histograms."""

from __future__ import annotations

import re
from collections import defaultdict

_LINE = re.compile(r"^([a-z_][a-z0-9_]*(?:\{[^}]*\})?) (\S+)$")
_BUCKET = re.compile(r'^(.*)_bucket\{(?:[^}]*,)?le="([^"]+)"\}$')


class Histogram:
    """The number of observations up to each bound."""

    def __init__(self, counts: dict[float, float]) -> None:
        self._counts = dict(sorted(counts.items()))

    def quantile(self, share: float) -> float | None:
        """The bound below which a share of the observations lies: infinite beyond the last, None without any."""
        total = max(self._counts.values(), default=0.0)
        if total <= 0:
            return None
        return next(bound for bound, count in self._counts.items() if count >= share * total)


class Samples:
    """The metrics of a server at one time."""

    def __init__(self, values: dict[str, float]) -> None:
        self._values = values

    def value(self, name: str) -> float:
        return self._values.get(name, 0.0)

    def total(self, name: str) -> float | None:
        """The sum over all labels; None if there is no such metric."""
        values = [value for key, value in self._values.items() if key.partition("{")[0] == name]
        return sum(values) if values else None

    def since(self, before: Samples | None, name: str) -> Histogram:
        """The histogram of the observations since an earlier time, over all other labels."""
        counts: defaultdict[float, float] = defaultdict(float)
        for key, count in self._values.items():
            match = _BUCKET.match(key)
            if match is not None and match[1] == name:
                counts[float(match[2].replace("+Inf", "inf"))] += count - (before.value(key) if before else 0.0)
        return Histogram(counts)


def read_samples(text: str) -> Samples:
    """The samples in the text format of Prometheus. Lines that cannot be read are left out."""
    found = (_LINE.match(line) for line in text.splitlines())
    return Samples({match[1]: float(match[2]) for match in found if match is not None})
