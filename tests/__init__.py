"""The tests, by what they need: nothing, a broker, Apache Kafka, Spark, a browser."""
