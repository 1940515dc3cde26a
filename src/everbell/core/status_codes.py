"""Sets of HTTP status codes as people write them: `200`, `"2xx"` for a hundred of them, `"!409"` to leave one out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from everbell.errors import InvalidInput

DONE = ("2xx",)
PERMANENT = ("4xx", "!408", "!409", "!425", "!429")

_CODE = re.compile(r"(!?)([1-5])(xx|[0-9]{2})", re.ASCII)
_HUNDRED = 100


def parse_codes(written: Sequence[str | int], field: str) -> frozenset[int]:
    """The codes of a list. A later entry overrides an earlier one."""
    codes: set[int] = set()
    for entry in written:
        match = _CODE.fullmatch(str(entry))
        if match is None:
            raise InvalidInput(f'{entry!r} is no status code such as 200, "2xx" or "!409"', field)
        first = int(match[2]) * _HUNDRED
        meant = range(first, first + _HUNDRED) if match[3] == "xx" else [first + int(match[3])]
        (codes.difference_update if match[1] else codes.update)(meant)
    return frozenset(codes)


def format_codes(codes: frozenset[int]) -> tuple[str | int, ...]:
    """Codes in the form that `parse_codes` reads."""
    written: list[str | int] = []
    for first in range(_HUNDRED, 6 * _HUNDRED, _HUNDRED):
        hundred = range(first, first + _HUNDRED)
        present = [code for code in hundred if code in codes]
        if len(present) * 2 > _HUNDRED:
            written.append(f"{first // _HUNDRED}xx")
            written += [f"!{code}" for code in hundred if code not in codes]
        else:
            written += present
    return tuple(written)
