"""The shell that plays the log: membership, leases, hand-over, forwarding. What to do is decided in `core.cluster`."""
