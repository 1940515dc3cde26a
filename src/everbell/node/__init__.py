"""What makes up a server process."""
