"""The shell that plays the log: membership, leases, hand-over, forwarding. The decisions are made in `core.cluster`."""
