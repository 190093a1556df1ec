"""The other side of the tests: real Kafka, its Java classes, and a socket to talk to any broker in bare messages.

    maven        Kafka's jars, fetched once into a folder that git ignores
    java         runs a Java program of ours on those jars
    batches      what a batch says, by our reading and by Java's
    broker       what tests may ask of any broker, whoever wrote it
    real_kafka   Apache Kafka in a process of its own
    librdkafka   a client that is neither ours nor Kafka's
    connection   request and response over one socket, by headrace's own wire layer

Tests get at all of it through the fixtures in tests/conftest.py.
"""
