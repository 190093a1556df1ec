import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The producer, and the consumer without a group. */
class Clients {
    static final int SECONDS_MAX = 30;
    static final Duration POLL = Duration.ofMillis(50);

    static Object produce(JsonNode command) throws Exception {
        String topic = command.get("topic").asText();
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        List<Long> offsets = new ArrayList<>();
        try (var producer = producer(command, Map.of("compression.type", command.get("codec").asText()))) {
            for (JsonNode record : command.get("records")) {
                var sent = new ProducerRecord<>(
                    topic, 0, record.get("timestamp").asLong(), bytes(record.get("key")), bytes(record.get("value")));
                for (JsonNode header : record.get("headers")) {
                    sent.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
                futures.add(producer.send(sent));
            }
            for (Future<RecordMetadata> future : futures) {
                offsets.add(future.get(SECONDS_MAX, TimeUnit.SECONDS).offset());
            }
        }
        return Map.of("offsets", offsets);
    }

    static Object consume(JsonNode command) throws Exception {
        int count = command.get("count").asInt();
        List<Object> found = new ArrayList<>();
        try (var consumer = consumer(command, Map.of("isolation.level", command.get("isolation").asText()))) {
            var partition = new TopicPartition(command.get("topic").asText(), 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            eventually("all records", () -> {
                consumer.poll(POLL).forEach(record -> found.add(asJson(record)));
                return found.size() >= count;
            });
        }
        return Map.of("records", found);
    }

    /** Positions by offset and time, and both ends. */
    static Object look(JsonNode command) throws Exception {
        var partition = new TopicPartition(command.get("topic").asText(), 0);
        long time = command.get("time").asLong();
        Map<String, Object> facts = new LinkedHashMap<>();
        try (var consumer = consumer(command, Map.of("isolation.level", "read_committed", "max.poll.records", "1"))) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, command.get("offset").asLong());
            facts.put("sought", first(consumer));
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, time)).get(partition);
            facts.put("at_time", List.of(found.offset(), found.timestamp()));
            facts.put("too_late", consumer.offsetsForTimes(Map.of(partition, Long.MAX_VALUE)).get(partition));
            facts.put("beginning", consumer.beginningOffsets(List.of(partition)).get(partition));
            facts.put("end", consumer.endOffsets(List.of(partition)).get(partition));
            consumer.seekToEnd(List.of(partition));
            facts.put("position", consumer.position(partition));
            facts.put("lag", consumer.currentLag(partition).orElse(-1));
            consumer.seekToBeginning(List.of(partition));
            facts.put("first", first(consumer));
            facts.put("partitions", consumer.partitionsFor(partition.topic()).size());
        }
        return facts;
    }

    private static long first(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        List<Long> found = new ArrayList<>();
        eventually("a record", () -> {
            consumer.poll(POLL).forEach(record -> found.add(record.offset()));
            return !found.isEmpty();
        });
        return found.get(0);
    }

    static KafkaProducer<byte[], byte[]> producer(JsonNode command, Map<String, String> options) {
        return new KafkaProducer<>(properties(command, options), new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(JsonNode command, Map<String, String> options) {
        return new KafkaConsumer<>(
            properties(command, options), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static Properties properties(JsonNode command, Map<String, String> options) {
        Properties properties = new Properties();
        properties.putAll(options);
        properties.put("bootstrap.servers", command.get("bootstrap").asText());
        return properties;
    }

    static void eventually(String what, Callable<Boolean> ask) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS_MAX);
        while (!ask.call()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(what + ": not after " + SECONDS_MAX + " s");
            }
            Thread.sleep(10);
        }
    }

    static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : text.asText().getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    private static Map<String, Object> asJson(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(List.of(header.key(), text(header.value())));
        }
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("offset", record.offset());
        found.put("timestamp", record.timestamp());
        found.put("key", text(record.key()));
        found.put("value", text(record.value()));
        found.put("headers", headers);
        return found;
    }
}
