import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Producers that do what lines of the standard input say. Each has a number and a thread.
 *
 *     N new KEY=VALUE ...    create the producer with these options
 *     N init | begin | commit | abort | close
 *     N send TOPIC PARTITION VALUE
 *
 * Each line has a response: `N ok`, `N abort REASON` (the transaction must be aborted) or `N failed REASON` (the producer
 * must be closed). Each record has a result: `N result VALUE PARTITION OFFSET`, with -1 if the offset, and -2 if the outcome is unknown.
 */
public class ScriptedProducer {
    private static final Map<String, ExecutorService> THREADS = new HashMap<>();
    private static final Map<String, ScriptedProducer> PRODUCERS = new HashMap<>();

    private final String number;
    private KafkaProducer<String, String> producer;

    private ScriptedProducer(String number) {
        this.number = number;
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split(" ");
            ScriptedProducer each = PRODUCERS.computeIfAbsent(words[0], ScriptedProducer::new);
            ExecutorService thread = THREADS.computeIfAbsent(words[0], n -> Executors.newSingleThreadExecutor());
            thread.execute(() -> each.run(words));
        }
        System.exit(0);
    }

    private void run(String[] words) {
        try {
            execute(words);
            say("ok");
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException
                | UnsupportedVersionException | TimeoutException | InterruptException e) {
            say("failed " + text(e));
        } catch (KafkaException e) {
            say("abort " + text(e));
        } catch (RuntimeException e) {
            say("failed " + text(e));
        }
    }

    private void execute(String[] words) {
        switch (words[1]) {
            case "new" -> {
                Properties options = new Properties();
                for (int i = 2; i < words.length; i++) {
                    int equals = words[i].indexOf('=');
                    options.put(words[i].substring(0, equals), words[i].substring(equals + 1));
                }
                producer = new KafkaProducer<>(options, new StringSerializer(), new StringSerializer());
            }
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> producer.close(Duration.ofSeconds(2));
            case "send" -> {
                ProducerRecord<String, String> record =
                    new ProducerRecord<>(words[2], Integer.parseInt(words[3]), null, words[4]);
                producer.send(record, (metadata, error) ->
                    say("result " + words[4] + " " + words[3] + " " + (error == null ? metadata.offset() : -2)));
            }
            default -> throw new IllegalArgumentException(words[1]);
        }
    }

    private static String text(Exception error) {
        return (error.getClass().getSimpleName() + ": " + error.getMessage()).replace('\n', ' ');
    }

    private void say(String text) {
        synchronized (System.out) {
            System.out.println(number + " " + text);
            System.out.flush();
        }
    }
}
