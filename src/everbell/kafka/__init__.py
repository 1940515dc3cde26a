"""Kafka: its settings, what is common to both ways, and the way in. The way out is `channels.kafka`."""
