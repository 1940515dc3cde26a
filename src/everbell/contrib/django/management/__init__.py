"""The commands that Everbell adds to `manage.py`."""
