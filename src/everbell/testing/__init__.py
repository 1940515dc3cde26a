"""Virtual time, for tests of Everbell and of programs that use it."""

from everbell.testing.virtual import VirtualClock, VirtualLoop, run_virtual

__all__ = ["VirtualClock", "VirtualLoop", "run_virtual"]
