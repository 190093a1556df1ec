import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.kafka.clients.producer.ProducerRecord;

/** A producer and a consumer that go on while brokers come and go, until a file is there that ends it. */
class Ride {
    private static final int PAUSE_MS = 4;

    static Object ride(JsonNode command) throws Exception {
        Path stop = Path.of(command.get("stop").asText());
        String topic = command.get("topic").asText();
        int partitions = command.get("partitions").asInt();
        List<Object> acknowledged = Collections.synchronizedList(new ArrayList<>());
        List<String> errors = Collections.synchronizedList(new ArrayList<>());
        AtomicInteger wanted = new AtomicInteger(Integer.MAX_VALUE);
        var reading = CompletableFuture.supplyAsync(() -> read(command, wanted));
        try (var producer = Clients.producer(command, Map.of("acks", "all", "enable.idempotence", "true"))) {
            for (int number = 0; !Files.exists(stop) && !reading.isDone(); number++) {
                int sent = number;
                byte[] value = Integer.toString(sent).getBytes(StandardCharsets.UTF_8);
                producer.send(new ProducerRecord<>(topic, sent % partitions, null, value), (metadata, error) -> {
                    if (error == null) {
                        acknowledged.add(List.of(sent, metadata.partition(), metadata.offset()));
                    } else {
                        errors.add(error.toString());
                    }
                });
                Thread.sleep(PAUSE_MS);
            }
            producer.flush();
        }
        wanted.set(acknowledged.size());
        List<Object> consumed = reading.get(Clients.SECONDS_MAX, TimeUnit.SECONDS);
        return Map.of("acknowledged", acknowledged, "errors", errors, "consumed", consumed);
    }

    /** As many different values as are wanted, by a group of one. */
    private static List<Object> read(JsonNode command, AtomicInteger wanted) {
        List<Object> found = new ArrayList<>();
        Set<Integer> values = new HashSet<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(command.get("seconds_max").asLong());
        try (var consumer = Groups.member(command, Map.of())) {
            consumer.subscribe(List.of(command.get("topic").asText()));
            while (values.size() < wanted.get() && System.nanoTime() < deadline) {
                consumer.poll(Clients.POLL).forEach(record -> {
                    int value = Integer.parseInt(Clients.text(record.value()));
                    values.add(value);
                    found.add(List.of(value, record.partition(), record.offset()));
                });
            }
        }
        return found;
    }
}
