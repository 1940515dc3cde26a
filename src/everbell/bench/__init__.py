"""Measuring this machine: `everbell bench`."""
