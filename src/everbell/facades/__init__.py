"""The formats of other products that come over HTTP and Kafka alike, as values of Everbell."""
