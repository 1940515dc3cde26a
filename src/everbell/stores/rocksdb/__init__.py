"""The embedded store: RocksDB in a directory of its own."""
