import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;

import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/**
 * Arguments: a file of keys (an int for the length, then the bytes), a file to write, a number of partitions.
 * Writes for each key two ints: its murmur2 hash and its partition.
 */
public class KeyHashes {
    public static void main(String[] args) throws Exception {
        int partitions = Integer.parseInt(args[2]);
        try (DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(args[0])));
                DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(args[1])))) {
            while (in.available() > 0) {
                byte[] key = new byte[in.readInt()];
                in.readFully(key);
                out.writeInt(Utils.murmur2(key));
                out.writeInt(BuiltInPartitioner.partitionForKey(key, partitions));
            }
        }
    }
}
