"""Both halves of HTTP/1.1: the server, and the client that channels deliver with."""
