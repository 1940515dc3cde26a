"""The ways into a server: HTTP and what is served over it."""
