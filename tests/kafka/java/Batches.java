import java.io.File;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.HexFormat;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.utils.Utils;

/**
 * Kafka's own code as a second opinion on bytes.
 *
 *     write CASES FOLDER    the batches that a JSON file describes, each to a file named after it
 *     read FOLDER           prints as JSON, by file name, the batches in each file of a folder
 *
 * Bytes are hexadecimal in JSON, null is null.
 */
public class Batches {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws Exception {
        if (args[0].equals("write")) {
            for (JsonNode node : JSON.readTree(new File(args[1]))) {
                File file = new File(args[2], node.get("name").asText());
                Files.write(file.toPath(), Utils.toArray(write(node)));
            }
        } else {
            ObjectNode all = JSON.createObjectNode();
            for (File file : new File(args[1]).listFiles()) {
                try {
                    all.set(file.getName(), read(ByteBuffer.wrap(Files.readAllBytes(file.toPath()))));
                } catch (Throwable error) { // some codecs and bad sizes throw errors that are no exceptions
                    all.put(file.getName(), error.toString());
                }
            }
            System.out.println(JSON.writeValueAsString(all));
        }
    }

    private static ByteBuffer write(JsonNode node) {
        long baseOffset = node.get("base_offset").asLong();
        long producerId = node.get("producer_id").asLong();
        short epoch = (short) node.get("producer_epoch").asInt();
        int leaderEpoch = node.get("leader_epoch").asInt();
        boolean transactional = node.get("transactional").asBoolean();
        byte magic = (byte) node.get("magic").asInt();
        long appendTime = node.get("append_time").asLong();
        TimestampType type = magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE
            : appendTime >= 0 ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
        JsonNode records = node.get("records");
        if (node.hasNonNull("committed")) {
            ControlRecordType kind =
                node.get("committed").asBoolean() ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
            EndTransactionMarker marker = new EndTransactionMarker(kind, node.get("coordinator_epoch").asInt());
            long timestamp = node.get("timestamp").asLong();
            return MemoryRecords
                .withEndTransactionMarker(baseOffset, timestamp, leaderEpoch, producerId, epoch, marker)
                .buffer();
        }
        ByteBuffer buffer = ByteBuffer.allocate(1024);
        int sequence = node.get("base_sequence").asInt();
        if (records.isEmpty()) {
            long last = node.get("last_offset").asLong();
            DefaultRecordBatch.writeEmptyHeader(buffer, magic, producerId, epoch, sequence, baseOffset, last,
                leaderEpoch, type, node.get("timestamp").asLong(), transactional, false);
            buffer.flip();
            return buffer;
        }
        Compression compression = Compression.of(CompressionType.forId(node.get("codec").asInt())).build();
        MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, magic, compression, type, baseOffset,
            appendTime, producerId, epoch, sequence, transactional, false, leaderEpoch);
        for (JsonNode record : records) {
            JsonNode pairs = record.get("headers");
            Header[] headers = new Header[pairs.size()];
            for (int i = 0; i < headers.length; i++)
                headers[i] = new RecordHeader(pairs.get(i).get(0).asText(), bytes(pairs.get(i).get(1)));
            long timestamp = record.get("timestamp").asLong();
            builder.appendWithOffset(record.get("offset").asLong(),
                new SimpleRecord(timestamp, bytes(record.get("key")), bytes(record.get("value")), headers));
        }
        return builder.build().buffer();
    }

    private static ArrayNode read(ByteBuffer buffer) {
        ArrayNode batches = JSON.createArrayNode();
        MemoryRecords all = MemoryRecords.readableRecords(buffer);
        if (all.validBytes() != buffer.limit())
            throw new IllegalStateException(all.validBytes() + " of " + buffer.limit() + " bytes are batches");
        for (MutableRecordBatch batch : all.batches()) {
            batch.ensureValid();
            ObjectNode node = batches.addObject();
            node.put("magic", batch.magic());
            node.put("codec", batch.compressionType().id);
            node.put("append_time", batch.timestampType() == TimestampType.LOG_APPEND_TIME ? batch.maxTimestamp() : -1);
            node.put("base_offset", batch.baseOffset());
            node.put("last_offset", batch.lastOffset());
            node.put("max_timestamp", batch.maxTimestamp());
            node.put("producer_id", batch.producerId());
            node.put("producer_epoch", batch.producerEpoch());
            node.put("base_sequence", batch.baseSequence());
            node.put("leader_epoch", batch.partitionLeaderEpoch());
            node.put("transactional", batch.isTransactional());
            node.put("control", batch.isControlBatch());
            ArrayNode records = node.putArray("records");
            for (var record : batch) {
                record.ensureValid();
                ObjectNode entry = records.addObject();
                entry.put("offset", record.offset());
                entry.put("timestamp", record.timestamp());
                entry.put("key", hex(record.hasKey() ? Utils.toArray(record.key()) : null));
                entry.put("value", hex(record.hasValue() ? Utils.toArray(record.value()) : null));
                ArrayNode headers = entry.putArray("headers");
                for (Header header : record.headers())
                    headers.addArray().add(header.key()).add(hex(header.value()));
                if (batch.isControlBatch()) {
                    EndTransactionMarker marker = EndTransactionMarker.deserialize(record);
                    node.put("committed", marker.controlType() == ControlRecordType.COMMIT);
                    node.put("coordinator_epoch", marker.coordinatorEpoch());
                }
            }
        }
        return batches;
    }

    private static byte[] bytes(JsonNode node) {
        return node.isNull() ? null : HEX.parseHex(node.asText());
    }

    private static String hex(byte[] data) {
        return data == null ? null : HEX.formatHex(data);
    }
}
