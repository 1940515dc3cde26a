"""From bytes to checked values: shared by HTTP and Kafka."""
