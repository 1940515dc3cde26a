"""Everbell: a durable event scheduler. Hand it a payload, a target and a time; it delivers."""
