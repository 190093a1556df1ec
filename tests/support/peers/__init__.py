"""The other side of the tests: real Kafka, its Java classes, and a socket to talk to any broker in bare messages.

    fetched      what no repository holds, fetched or built once into a folder that git ignores
    maven        jars, that way
    java         runs a Java program of ours on those jars
    batches      what a batch says, by our reading and by Java's
    broker       what tests may ask of any broker, whoever wrote it
    real_kafka   Apache Kafka in a process of its own
    embedded     our own broker
    librdkafka   a client that is neither ours nor Kafka's
    clients      what every client of other people's is asked to do; by each of them:
                 of_confluent, of_aiokafka, of_kafka_python, java_client, kafkajs, franz_go
    program      a client in another language, in a process that takes commands
    spark_connector   Spark with its own Kafka connector
    connection   request and response over one socket, by headrace's own wire layer

Tests get at all of it through the fixtures in tests/conftest.py.
"""
