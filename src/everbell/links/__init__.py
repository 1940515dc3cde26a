"""Calls of the engine's ports between processes: of gateways to their node, and of nodes to each other."""
