"""The HTTP API: routes, handlers and views."""
