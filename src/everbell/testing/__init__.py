"""Virtual time, for tests of Everbell and of programs that use it."""

from everbell.testing.bell import Attempted, VirtualBell
from everbell.testing.virtual import VirtualClock, VirtualLoop, run_virtual

__all__ = ["Attempted", "VirtualBell", "VirtualClock", "VirtualLoop", "run_virtual"]
