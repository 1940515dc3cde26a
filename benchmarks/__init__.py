"""The whole table of measurements, kept in files."""
