import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;

/** More areas of the admin client: groups, transactions, quotas, users and the cluster itself. */
class AdminAreas {
    /** What is left of a group without members. */
    static void oldGroup(Admin admin, String group, TopicPartition filled, Map<String, Object> facts) throws Exception {
        facts.put("group_listed", listed(admin, new ListGroupsOptions()).contains(group));
        var described = get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
        facts.put("group_state", described.groupState().toString());
        var offsets = get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        facts.put("committed", offsets.get(filled).offset());
        get(admin.deleteConsumerGroups(List.of(group)).all());
        facts.put("group_gone", !listed(admin, new ListGroupsOptions()).contains(group));
    }

    static void groups(Admin admin, JsonNode command, Map<String, Object> facts) throws Exception {
        String group = command.get("group").asText();
        var first = new TopicPartition(command.get("topic").asText(), 0);
        var second = new TopicPartition(first.topic(), 1);
        try (var consumer = Groups.member(command, Map.of("group.instance.id", "one", "client.id", "member"))) {
            consumer.subscribe(List.of(first.topic()));
            Clients.eventually("both partitions", () -> {
                consumer.poll(Clients.POLL);
                return consumer.assignment().size() == 2;
            });
            consumer.commitSync(Map.of(first, new OffsetAndMetadata(1, "note")));
            var described = get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
            var member = described.members().iterator().next();
            facts.put("live", List.of(described.groupState().toString(), described.partitionAssignor(),
                described.coordinator().id(), described.members().size()));
            facts.put("member", List.of(member.clientId(), member.groupInstanceId().orElse(""),
                member.assignment().topicPartitions().size(), member.host()));
            facts.put("stable", listed(admin, in(GroupState.STABLE)).contains(group));
            facts.put("empty", listed(admin, in(GroupState.EMPTY)).contains(group));
            facts.put("errors", List.of(
                error(() -> admin.deleteConsumerGroups(List.of(group)).all()),
                error(() -> admin.deleteConsumerGroupOffsets(group, Set.of(first)).all()),
                error(() -> admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(9))).all()),
                error(() -> admin.describeConsumerGroups(List.of("nobody-" + group)).all()),
                error(() -> admin.deleteConsumerGroups(List.of("nobody-" + group)).all())));
            get(admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all());
            described = get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
            facts.put("removed", List.of(described.groupState().toString(), described.members().size()));
        } catch (KafkaException error) {
            facts.put("told", error.getClass().getSimpleName()); // closing, the member hears that it was removed
        }
        Clients.eventually("no member", () ->
            get(admin.describeConsumerGroups(List.of(group)).all()).get(group).groupState() == GroupState.EMPTY);
        get(admin.alterConsumerGroupOffsets(group, Map.of(
            first, new OffsetAndMetadata(3, "note"), second, new OffsetAndMetadata(0))).all());
        var offsets = get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        facts.put("offsets", List.of(
            offsets.get(first).offset(), offsets.get(first).metadata(), offsets.get(second).offset()));
        get(admin.deleteConsumerGroupOffsets(group, Set.of(first)).all());
        offsets = get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        facts.put("left", offsets.keySet().stream().map(TopicPartition::partition).toList());
        get(admin.deleteConsumerGroups(List.of(group)).all());
        facts.put("gone", !listed(admin, new ListGroupsOptions()).contains(group));
    }

    static void transactions(Admin admin, JsonNode command, Map<String, Object> facts) throws Exception {
        String id = command.get("transactional_id").asText();
        var partition = new TopicPartition(command.get("topic").asText(), 0);
        var options = Map.of("transactional.id", id, "transaction.timeout.ms", "50000");
        try (var producer = Clients.producer(command, options)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, partition);
            var described = get(admin.describeTransactions(List.of(id)).all()).get(id);
            facts.put("open", List.of(described.state().toString(), described.transactionTimeoutMs(),
                described.topicPartitions().equals(Set.of(partition)), described.transactionStartTimeMs().isPresent()));
            var ongoing = new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING));
            var young = new ListTransactionsOptions().filterOnDuration(3_600_000);
            facts.put("listed", List.of(has(admin, ongoing, id), has(admin, young, id),
                has(admin, new ListTransactionsOptions().filterProducerIds(Set.of(described.producerId())), id),
                has(admin, new ListTransactionsOptions().filterOnTransactionalIdPattern("no-.*"), id)));
            var active = get(admin.describeProducers(List.of(partition)).all()).get(partition).activeProducers().get(0);
            facts.put("producer", List.of(active.producerId() == described.producerId(),
                active.currentTransactionStartOffset().orElse(-1), active.lastSequence()));
            facts.put("stable_offset", stable(admin, partition));
            get(admin.fenceProducers(List.of(id)).all());
            facts.put("fenced", fenced(producer));
            Clients.eventually("the marker", () -> stable(admin, partition) == 2);
            var state = get(admin.describeTransactions(List.of(id)).all()).get(id).state();
            facts.put("ended", state == TransactionState.EMPTY || state == TransactionState.COMPLETE_ABORT);
        }
        String left = id + "-left";
        try (var producer = Clients.producer(command, Map.of("transactional.id", left))) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, partition);
            get(admin.forceTerminateTransaction(left).result());
            Clients.eventually("the marker", () -> stable(admin, partition) == 4);
            facts.put("terminated", fenced(producer));
        }
        facts.put("errors", List.of(error(() -> admin.describeTransactions(List.of("nobody-" + id)).all())));
    }

    static void quotas(Admin admin, JsonNode command, Map<String, Object> facts) throws Exception {
        String name = command.get("name").asText();
        var client = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, name));
        var user = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, name, ClientQuotaEntity.CLIENT_ID, name));
        alter(admin, client, "producer_byte_rate", 1_000_000.0);
        alter(admin, client, "consumer_byte_rate", 2_000_000.0);
        alter(admin, user, "request_percentage", 50.0);
        var ofClient = ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.CLIENT_ID, name);
        Clients.eventually("both", () -> quotas(admin, ClientQuotaFilter.contains(List.of(ofClient))).size() == 2);
        facts.put("strict", quotas(admin, ClientQuotaFilter.containsOnly(List.of(ofClient))).get(client));
        facts.put("of_user", quotas(admin, ClientQuotaFilter.contains(List.of(
            ClientQuotaFilterComponent.ofEntityType(ClientQuotaEntity.USER), ofClient))).get(user));
        alter(admin, client, "producer_byte_rate", null);
        Clients.eventually("one less", () ->
            quotas(admin, ClientQuotaFilter.containsOnly(List.of(ofClient))).get(client).size() == 1);
        facts.put("left", quotas(admin, ClientQuotaFilter.containsOnly(List.of(ofClient))).get(client));
        alter(admin, client, "consumer_byte_rate", null);
        alter(admin, user, "request_percentage", null);
        Clients.eventually("none", () -> quotas(admin, ClientQuotaFilter.contains(List.of(ofClient))).isEmpty());
        facts.put("errors", List.of(error(() -> admin.alterClientQuotas(List.of(
            new ClientQuotaAlteration(client, List.of(new ClientQuotaAlteration.Op("no_such_rate", 1.0))))).all())));
    }

    static void users(Admin admin, JsonNode command, Map<String, Object> facts) throws Exception {
        String name = command.get("name").asText();
        var info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
        var other = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192);
        get(admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(name, info, "secret"))).all());
        get(admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(name, other, "secret"))).all());
        Clients.eventually("the user", () -> get(admin.describeUserScramCredentials().users()).contains(name));
        facts.put("credentials", get(admin.describeUserScramCredentials(List.of(name)).description(name))
            .credentialInfos().stream().map(found -> found.mechanism().mechanismName() + ":" + found.iterations())
            .sorted().toList());
        get(admin.alterUserScramCredentials(List.of(
            new UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_256))).all());
        Clients.eventually("one less", () ->
            get(admin.describeUserScramCredentials(List.of(name)).description(name)).credentialInfos().size() == 1);
        facts.put("errors", List.of(
            error(() -> admin.alterUserScramCredentials(List.of(
                new UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_256))).all()),
            error(() -> admin.alterUserScramCredentials(List.of(
                new UserScramCredentialUpsertion(name, info, "secret"),
                new UserScramCredentialUpsertion(name, other, "secret"))).all()),
            error(() -> admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(
                name, new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 10), "secret"))).all()),
            error(() -> admin.describeUserScramCredentials(List.of("nobody-" + name)).description("nobody-" + name))));
        get(admin.alterUserScramCredentials(List.of(
            new UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_512))).all());
    }

    static void cluster(Admin admin, JsonNode command, Map<String, Object> facts) throws Exception {
        var partition = new TopicPartition(command.get("topic").asText(), 0);
        var cluster = admin.describeCluster();
        facts.put("nodes", get(cluster.nodes()).stream()
            .map(node -> List.of(node.id(), node.host(), node.port())).toList());
        facts.put("controller", get(cluster.controller()).id());
        facts.put("has_id", !get(cluster.clusterId()).isEmpty());
        var features = get(admin.describeFeatures().featureMetadata()).finalizedFeatures();
        facts.put("transaction_version", features.get("transaction.version").maxVersionLevel());
        var folders = get(admin.describeLogDirs(List.of(1)).allDescriptions()).get(1).values();
        facts.put("folders", folders.size());
        facts.put("replica_bytes", folders.iterator().next().replicaInfos().get(partition).size() > 0);
        var replica = new TopicPartitionReplica(partition.topic(), 0, 1);
        facts.put("replica_folder", get(admin.describeReplicaLogDirs(List.of(replica)).all()).get(replica)
            .getCurrentReplicaLogDir() != null);
        facts.put("reassignments", get(admin.listPartitionReassignments().reassignments()).size());
        facts.put("errors", List.of(
            error(() -> admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).all()),
            error(() -> admin.electLeaders(ElectionType.PREFERRED, Set.of(new TopicPartition("nobody", 0))).all())));
    }

    // -- helpers ---------------------------------------------------------------------------------

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return Administration.get(future);
    }

    private static String error(Administration.Call call) throws Exception {
        return Administration.error(call);
    }

    private static ListGroupsOptions in(GroupState state) {
        return new ListGroupsOptions().inGroupStates(Set.of(state));
    }

    private static List<String> listed(Admin admin, ListGroupsOptions options) throws Exception {
        return get(admin.listGroups(options).all()).stream().map(GroupListing::groupId).toList();
    }

    private static boolean has(Admin admin, ListTransactionsOptions options, String id) throws Exception {
        return get(admin.listTransactions(options).all()).stream()
            .anyMatch(found -> found.transactionalId().equals(id));
    }

    private static long stable(Admin admin, TopicPartition partition) throws Exception {
        var committed = new ListOffsetsOptions(IsolationLevel.READ_COMMITTED);
        return get(admin.listOffsets(Map.of(partition, OffsetSpec.latest()), committed).all()).get(partition).offset();
    }

    private static void send(Producer<byte[], byte[]> producer, TopicPartition partition) throws Exception {
        var record = new ProducerRecord<byte[], byte[]>(partition.topic(), "open".getBytes());
        producer.send(record).get(Clients.SECONDS_MAX, TimeUnit.SECONDS);
    }

    private static String fenced(Producer<?, ?> producer) {
        try {
            producer.commitTransaction();
            return "none";
        } catch (KafkaException error) {
            return error.getClass().getSimpleName();
        }
    }

    private static void alter(Admin admin, ClientQuotaEntity entity, String name, Double value) throws Exception {
        Collection<ClientQuotaAlteration.Op> change = List.of(new ClientQuotaAlteration.Op(name, value));
        get(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, change))).all());
    }

    private static Map<ClientQuotaEntity, Map<String, Double>> quotas(Admin admin, ClientQuotaFilter filter)
            throws Exception {
        return new HashMap<>(get(admin.describeClientQuotas(filter).entities()));
    }
}
