"""A recording of the calls by which a program changes files, made with strace and read back in their order.

strace stops every thread at the beginning and at the end of each call, so the recording has one order for the calls of
all threads. Content is recorded as a whole.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_TRACED = (
    "openat,close,write,pwrite64,ftruncate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,"
    "link,linkat,rmdir,lseek,fallocate"
)
_NEVER_USED = "open,creat,writev,pwritev,pwritev2,truncate,copy_file_range,sendfile,dup,dup2,dup3,msync,sync,syncfs"
"""Calls that change files, too. The disk of `disk.py` knows none of them, and says so if it meets one."""

_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>(.*)|(\w+)\((.*))\Z", re.DOTALL)
_RESULT = re.compile(r"(.*)\) += (-?\d+)(?: .*)?\Z", re.DOTALL)
_UNFINISHED = " <unfinished ...>"
_MOST_BYTES = 64 << 20


class Call(NamedTuple):
    """The beginning of a call (`result` is None), or its end."""

    number: int
    """Beginning and end of a call have the same number."""
    name: str
    arguments: tuple[str, ...]
    result: int | None


def record(command: Sequence[str], trace: Path) -> str:
    """Run a command to its end, and write its calls into a file. Returns the output of the command."""
    program = shutil.which("strace")
    assert program is not None, "strace is not installed"
    calls = f"trace={_TRACED},{_NEVER_USED}"
    watch = [program, "-f", "--seccomp-bpf", "-xx", "-s", str(_MOST_BYTES), "-e", calls, "-e", "signal=none"]
    done = subprocess.run([*watch, "-o", str(trace), *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read(trace: Path) -> Iterator[Call]:
    """The beginnings and ends of all calls, in their order."""
    open_calls: dict[str, tuple[int, str, str]] = {}
    number = 0
    with trace.open() as lines:
        for line in lines:
            match = _LINE.match(line.rstrip("\n"))
            if match is None:  # The end of a process or thread.
                continue
            thread, resumed, rest, name, begun = match.groups()
            if resumed is None:
                number += 1
                text, is_unfinished = _without(begun, _UNFINISHED)
                ended = None if is_unfinished else _RESULT.match(text)
                arguments = text if ended is None else ended[1]
                yield Call(number, name, _split(arguments), None)
                if ended is None:
                    open_calls[thread] = (number, name, arguments)
                else:
                    yield Call(number, name, _split(arguments), int(ended[2]))
            elif (ended := _RESULT.match(rest)) is not None:
                earlier, name, arguments = open_calls.pop(thread)
                yield Call(earlier, name, _split(arguments + ended[1]), int(ended[2]))


def _without(text: str, ending: str) -> tuple[str, bool]:
    return (text.removesuffix(ending), True) if text.endswith(ending) else (text, False)


def _split(arguments: str) -> tuple[str, ...]:
    # Strings are in hexadecimal digits, so no comma is part of one.
    return tuple(arguments.split(", "))


def content(argument: str) -> bytes:
    """The bytes of an argument."""
    assert argument[:1] + argument[-1:] == '""', f"a shortened argument: {argument[-20:]}"
    return bytes.fromhex(argument[1:-1].replace("\\x", ""))
