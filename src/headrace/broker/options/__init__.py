"""The tables of `broker_options`, by what they are about. Names, types and ranges are those of Apache Kafka 4.3."""
