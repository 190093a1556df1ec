import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Consumers in a group, and transactions that move it. */
class Groups {
    static KafkaConsumer<byte[], byte[]> member(JsonNode command, Map<String, String> options) {
        Map<String, String> all = new HashMap<>(Map.of(
            "group.id", command.get("group").asText(),
            "auto.offset.reset", "earliest",
            "session.timeout.ms", "10000",
            "heartbeat.interval.ms", "200",
            "fetch.max.wait.ms", "100"));
        all.putAll(options);
        return Clients.consumer(command, all);
    }

    static Object rebalance(JsonNode command) throws Exception {
        int partitions = command.get("partitions").asInt();
        int count = command.get("count").asInt();
        List<String> topics = List.of(command.get("topic").asText());
        List<String> values = new ArrayList<>();
        Map<String, Object> facts = new HashMap<>(Map.of("values", values));
        try (var first = member(command, Map.of()); var second = member(command, Map.of())) {
            first.subscribe(topics);
            Clients.eventually("all partitions", () -> poll(first, values).size() == partitions);
            facts.put("alone", has(first));
            second.subscribe(topics);
            Clients.eventually("both to have some", () -> {
                poll(first, values);
                poll(second, values);
                return has(first).size() + has(second).size() == partitions && !has(second).isEmpty();
            });
            facts.put("shared", List.of(has(first), has(second)));
            second.close();
            Clients.eventually("all partitions again", () -> poll(first, values).size() == partitions);
            facts.put("again", has(first));
            Clients.eventually("all values", () -> {
                poll(first, values);
                return new HashSet<>(values).size() == count;
            });
            first.commitSync();
        }
        return facts;
    }

    static Object transform(JsonNode command) throws Exception {
        var partition = new TopicPartition(command.get("source").asText(), 0);
        String id = command.get("transactional_id").asText();
        try (var producer = Clients.producer(command, Map.of("transactional.id", id));
                var consumer = member(command, Map.of("enable.auto.commit", "false"))) {
            consumer.subscribe(List.of(partition.topic()));
            producer.initTransactions();
            attempt(command, producer, consumer, partition);
            producer.abortTransaction();
            OffsetAndMetadata found = consumer.committed(Set.of(partition)).get(partition);
            consumer.seek(partition, 0);
            attempt(command, producer, consumer, partition);
            producer.commitTransaction();
            Map<String, Object> facts = new HashMap<>();
            facts.put("after_abort", found == null ? null : found.offset());
            return facts;
        }
    }

    private static void attempt(
            JsonNode command,
            KafkaProducer<byte[], byte[]> producer,
            KafkaConsumer<byte[], byte[]> consumer,
            TopicPartition partition) throws Exception {
        List<String> values = new ArrayList<>();
        Clients.eventually("all records", () -> {
            poll(consumer, values);
            return values.size() == command.get("count").asInt();
        });
        producer.beginTransaction();
        for (String value : values) {
            byte[] upper = value.toUpperCase(Locale.ROOT).getBytes(StandardCharsets.UTF_8);
            producer.send(new ProducerRecord<>(command.get("target").asText(), upper));
        }
        producer.flush(); // it throws away what it has not sent when the transaction is aborted
        var offsets = Map.of(partition, new OffsetAndMetadata(consumer.position(partition)));
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
    }

    private static List<Integer> poll(KafkaConsumer<byte[], byte[]> member, List<String> values) {
        member.poll(Clients.POLL).forEach(record -> values.add(Clients.text(record.value())));
        return has(member);
    }

    private static List<Integer> has(KafkaConsumer<byte[], byte[]> member) {
        return member.assignment().stream().map(TopicPartition::partition).sorted().toList();
    }
}
