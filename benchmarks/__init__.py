"""The complete table of measurements, stored in files."""
