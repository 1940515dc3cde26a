"""Talking to a server from Python: clients that wait and clients that await, and workers that pull."""
