"""Kafka: its settings, reading from topics (`source`) and delivery to topics (`channel`)."""
