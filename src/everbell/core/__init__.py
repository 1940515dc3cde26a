"""The pure part of Everbell: values and functions with no I/O, no clock and no randomness."""
