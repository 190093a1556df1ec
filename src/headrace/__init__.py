"""headrace: exactly-once delivery from Spark to Kafka, in Python."""

__all__ = ["__version__"]

__version__ = "0.1.0"
