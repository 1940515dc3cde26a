"""The store in Cassandra."""
