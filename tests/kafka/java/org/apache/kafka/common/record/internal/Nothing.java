package org.apache.kafka.common.record.internal;

/** Kafka 3 has no such package, and Java refuses to import all of a package that is not there. */
class Nothing {
}
