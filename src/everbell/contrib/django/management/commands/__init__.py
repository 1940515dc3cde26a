"""The commands that Everbell adds to `manage.py`, one module each."""
