import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;

/**
 * Reads lines of writer's schema, reader's schema and a value in hexadecimal, separated by tabs. For each, prints the value
 * that Java's Avro reads, written with the reader's schema; or "error" and the message.
 */
public class AvroResolve {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line; (line = in.readLine()) != null; ) {
            String result;
            try {
                String[] parts = line.split("\t", -1);
                result = resolve(parse(parts[0]), parse(parts[1]), HexFormat.of().parseHex(parts[2]));
            } catch (Exception | StackOverflowError error) {
                result = "error " + String.valueOf(error).replace('\n', ' ');
            }
            out.println(result);
        }
    }

    private static Schema parse(String text) {
        return new Schema.Parser(NameValidator.UTF_VALIDATOR).parse(text);
    }

    private static String resolve(Schema writer, Schema reader, byte[] data) throws Exception {
        Object value = new GenericDatumReader<Object>(writer, reader)
                .read(null, DecoderFactory.get().binaryDecoder(data, null));
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
        new GenericDatumWriter<Object>(reader).write(value, encoder);
        encoder.flush();
        return HexFormat.of().formatHex(bytes.toByteArray());
    }
}
