"""The declarations of `broker_options`, by subject. Names, types and ranges are those of Apache Kafka 4.3."""
