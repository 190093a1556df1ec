"""The peers of headrace in tests: Apache Kafka, its Java classes, foreign clients, and raw connections.

    fetched      downloads and builds, cached in a folder that git ignores
    maven        jars from Maven
    java         runs Java programs of the tests on those jars
    batches      batches as decoded by headrace and by Java
    broker       the interface of all brokers in tests
    real_kafka   Apache Kafka in a separate process
    embedded     the headrace broker
    librdkafka   produce and consume with librdkafka
    clients      the interface of foreign clients; their implementations:
                 of_confluent, of_aiokafka, of_kafka_python, java_client, kafkajs, franz_go
    program      a client in another language, as a process that takes commands
    streams      a word count with Kafka Streams, as a process that can be killed
    spark_connector   Spark with its own Kafka connector
    connection   request and response over one socket, with headrace's wire layer

Tests use them through the fixtures in tests/conftest.py.
"""
