import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Kafka's admin client: each area answers with what it found, for the test to compare. */
class Administration {
    interface Area {
        void look(Admin admin, JsonNode command, Map<String, Object> facts) throws Exception;
    }

    interface Call {
        KafkaFuture<?> start() throws Exception;
    }

    private static final Map<String, Area> AREAS = Map.of(
        "topics", Administration::topics,
        "configs", Administration::configs,
        "offsets", Administration::offsets,
        "groups", AdminAreas::groups,
        "transactions", AdminAreas::transactions,
        "quotas", AdminAreas::quotas,
        "users", AdminAreas::users,
        "cluster", AdminAreas::cluster);

    static Object area(JsonNode command) throws Exception {
        Map<String, Object> facts = new LinkedHashMap<>();
        try (Admin admin = Admin.create(Clients.properties(command, Map.of()))) {
            AREAS.get(command.get("area").asText()).look(admin, command, facts);
        }
        return facts;
    }

    /** What all clients do: see test_clients. */
    static Object administer(JsonNode command) throws Exception {
        Map<String, Object> facts = new LinkedHashMap<>();
        String topic = command.get("topic").asText();
        var filled = new TopicPartition(command.get("filled").asText(), 0);
        String group = command.get("group").asText();
        try (Admin admin = Admin.create(Clients.properties(command, Map.of()))) {
            create(admin, topic, 2, Map.of("retention.ms", "1000000"));
            facts.put("partitions", partitions(admin, topic));
            facts.put("retention", option(admin, topic, "retention.ms").value());
            alter(admin, topic, "retention.ms", "2000000", OpType.SET);
            facts.put("altered", awaitOption(admin, topic, "retention.ms", "2000000"));
            get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
            Clients.eventually("three partitions", () -> partitions(admin, topic) == 3);
            facts.put("grown", partitions(admin, topic));
            facts.put("listed", get(admin.listTopics().names()).contains(topic));
            get(admin.deleteTopics(List.of(topic)).all());
            Clients.eventually("the end of the topic", () -> !get(admin.listTopics().names()).contains(topic));
            facts.put("gone", true);
            get(admin.deleteRecords(Map.of(filled, RecordsToDelete.beforeOffset(3))).all());
            facts.put("offsets", List.of(offset(admin, filled, OffsetSpec.earliest()),
                offset(admin, filled, OffsetSpec.latest())));
            var cluster = admin.describeCluster();
            facts.put("nodes", get(cluster.nodes()).stream()
                .map(node -> List.of(node.id(), node.host(), node.port())).toList());
            facts.put("controller", get(cluster.controller()).id());
            AdminAreas.oldGroup(admin, group, filled, facts);
        }
        return facts;
    }

    private static void topics(Admin admin, JsonNode command, Map<String, Object> facts) throws Exception {
        String topic = command.get("topic").asText();
        var tried = admin.createTopics(
            List.of(new NewTopic(topic, 2, (short) 1)), new CreateTopicsOptions().validateOnly(true));
        facts.put("tried", get(tried.numPartitions(topic)));
        facts.put("tried_exists", get(admin.listTopics().names()).contains(topic));
        var wanted = new NewTopic(topic, Map.of(0, List.of(1), 1, List.of(1)))
            .configs(Map.of("cleanup.policy", "compact"));
        var made = admin.createTopics(List.of(wanted));
        facts.put("made", List.of(get(made.numPartitions(topic)), get(made.replicationFactor(topic)),
            get(made.config(topic)).get("cleanup.policy").value()));
        Uuid id = get(made.topicId(topic));
        Clients.eventually("the topic", () -> get(admin.listTopics().names()).contains(topic));
        var byName = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
        var byId = get(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds()).get(id);
        facts.put("same_id", byName.topicId().equals(id) && byId.name().equals(topic));
        facts.put("described", byName.partitions().stream().map(partition -> List.of(partition.partition(),
            partition.leader().id(), partition.replicas().size(), partition.isr().size())).toList());
        facts.put("internal", byName.isInternal());
        facts.put("errors", List.of(
            error(() -> admin.createTopics(List.of(wanted)).all()),
            error(() -> admin.createTopics(List.of(new NewTopic("no/name", 1, (short) 1))).all()),
            error(() -> admin.createTopics(List.of(new NewTopic(topic + "-0", 0, (short) 1))).all()),
            error(() -> admin.createTopics(List.of(new NewTopic(topic + "-9", 1, (short) 9))).all()),
            error(() -> admin.createTopics(List.of(new NewTopic(topic + "-x", 1, (short) 1)
                .configs(Map.of("no.such", "1")))).all()),
            error(() -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(1))).all()),
            error(() -> admin.describeTopics(List.of("nobody")).allTopicNames()),
            error(() -> admin.describeTopics(TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()))).allTopicIds()),
            error(() -> admin.deleteTopics(List.of("nobody")).all())));
        get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
        Clients.eventually("the end of the topic", () -> !get(admin.listTopics().names()).contains(topic));
        create(admin, topic, 1, Map.of());
        var again = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
        facts.put("new_id", !again.topicId().equals(id));
    }

    private static void configs(Admin admin, JsonNode command, Map<String, Object> facts) throws Exception {
        String topic = command.get("topic").asText();
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var all = get(admin.describeConfigs(List.of(resource)).all()).get(resource);
        Set<String> missing = new TreeSet<>(LogConfig.configNames());
        all.entries().forEach(entry -> missing.remove(entry.name()));
        missing.removeIf(name -> name.startsWith("internal."));
        facts.put("missing", missing);
        facts.put("default", source(all.get("flush.ms")));
        alter(admin, topic, "cleanup.policy", "compact", OpType.SET);
        facts.put("set", awaitOption(admin, topic, "cleanup.policy", "compact"));
        facts.put("set_source", source(option(admin, topic, "cleanup.policy")));
        alter(admin, topic, "cleanup.policy", "delete", OpType.APPEND);
        facts.put("appended", awaitOption(admin, topic, "cleanup.policy", "compact,delete"));
        alter(admin, topic, "cleanup.policy", "compact", OpType.SUBTRACT);
        facts.put("subtracted", awaitOption(admin, topic, "cleanup.policy", "delete"));
        alter(admin, topic, "cleanup.policy", null, OpType.DELETE);
        Clients.eventually("the default", () -> option(admin, topic, "cleanup.policy").isDefault());
        var validated = new AlterConfigsOptions().validateOnly(true);
        var change = Map.<ConfigResource, Collection<AlterConfigOp>>of(
            resource, List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "7"), OpType.SET)));
        get(admin.incrementalAlterConfigs(change, validated).all());
        facts.put("validated", option(admin, topic, "retention.ms").value().equals("7"));
        var nobody = new ConfigResource(ConfigResource.Type.TOPIC, "nobody");
        var broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        var ofBroker = get(admin.describeConfigs(List.of(broker)).all()).get(broker);
        facts.put("node_id", List.of(ofBroker.get("node.id").value(), ofBroker.get("node.id").isReadOnly()));
        facts.put("types", List.of(all.get("flush.ms").type().name(), all.get("cleanup.policy").type().name()));
        facts.put("listed", get(admin.listConfigResources(
            Set.of(ConfigResource.Type.TOPIC), new ListConfigResourcesOptions()).all()).contains(resource));
        facts.put("errors", List.of(
            error(() -> alterAll(admin, resource, "retention.ms", "many", OpType.SET)),
            error(() -> alterAll(admin, resource, "no.such", "1", OpType.SET)),
            error(() -> alterAll(admin, resource, "retention.ms", "1", OpType.APPEND)),
            error(() -> alterAll(admin, nobody, "flush.ms", "1", OpType.SET)),
            error(() -> alterAll(admin, broker, "node.id", "2", OpType.SET)),
            error(() -> admin.describeConfigs(List.of(nobody)).all())));
    }

    private static void offsets(Admin admin, JsonNode command, Map<String, Object> facts) throws Exception {
        var filled = new TopicPartition(command.get("topic").asText(), 0);
        facts.put("offsets", List.of(
            offset(admin, filled, OffsetSpec.earliest()),
            offset(admin, filled, OffsetSpec.latest()),
            offset(admin, filled, OffsetSpec.maxTimestamp()),
            offset(admin, filled, OffsetSpec.forTimestamp(command.get("time").asLong())),
            offset(admin, filled, OffsetSpec.forTimestamp(Long.MAX_VALUE)),
            offset(admin, filled, OffsetSpec.earliestLocal()),
            offset(admin, filled, OffsetSpec.latestTiered())));
        var deleted = admin.deleteRecords(Map.of(filled, RecordsToDelete.beforeOffset(4)));
        facts.put("low_watermark", get(deleted.lowWatermarks().get(filled)).lowWatermark());
        facts.put("earliest", offset(admin, filled, OffsetSpec.earliest()));
        facts.put("errors", List.of(
            error(() -> admin.deleteRecords(Map.of(filled, RecordsToDelete.beforeOffset(99))).all()),
            error(() -> admin.listOffsets(Map.of(new TopicPartition("nobody", 0), OffsetSpec.latest())).all())));
        var rest = admin.deleteRecords(Map.of(filled, RecordsToDelete.beforeOffset(-1)));
        facts.put("emptied", get(rest.lowWatermarks().get(filled)).lowWatermark());
    }

    // -- helpers ---------------------------------------------------------------------------------

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(Clients.SECONDS_MAX, TimeUnit.SECONDS);
    }

    /** The name of the exception that a call ends with. */
    static String error(Call call) throws Exception {
        try {
            get(call.start());
            return "none";
        } catch (ExecutionException failed) {
            return failed.getCause().getClass().getSimpleName();
        }
    }

    private static void create(Admin admin, String topic, int count, Map<String, String> configs) throws Exception {
        get(admin.createTopics(List.of(new NewTopic(topic, Optional.of(count), Optional.of((short) 1))
            .configs(configs))).all());
        Clients.eventually("the topic", () -> get(admin.listTopics().names()).contains(topic));
    }

    private static int partitions(Admin admin, String topic) throws Exception {
        return get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size();
    }

    static long offset(Admin admin, TopicPartition partition, OffsetSpec spec) throws Exception {
        return get(admin.listOffsets(Map.of(partition, spec)).all()).get(partition).offset();
    }

    private static ConfigEntry option(Admin admin, String topic, String name) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return get(admin.describeConfigs(List.of(resource)).all()).get(resource).get(name);
    }

    private static List<Object> source(ConfigEntry entry) {
        return new ArrayList<>(List.of(entry.source().name(), entry.isDefault()));
    }

    private static String awaitOption(Admin admin, String topic, String name, String value) throws Exception {
        Clients.eventually(name + "=" + value, () -> option(admin, topic, name).value().equals(value));
        return value;
    }

    private static void alter(Admin admin, String topic, String name, String value, OpType how) throws Exception {
        get(alterAll(admin, new ConfigResource(ConfigResource.Type.TOPIC, topic), name, value, how));
    }

    private static KafkaFuture<Void> alterAll(
            Admin admin, ConfigResource resource, String name, String value, OpType how) {
        var change = new AlterConfigOp(new ConfigEntry(name, value), how);
        return admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all();
    }
}
