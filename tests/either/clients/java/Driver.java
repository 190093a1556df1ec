import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

/**
 * Kafka's own clients and tools, in one process: a command a line on standard input, an answer a line on standard
 * output. Whatever else is printed goes to standard error.
 */
public class Driver {
    interface Command {
        Object run(JsonNode arguments) throws Exception;
    }

    private static final ObjectMapper JSON = new ObjectMapper();

    private static final Map<String, Command> COMMANDS = Map.ofEntries(
        Map.entry("produce", Clients::produce),
        Map.entry("consume", Clients::consume),
        Map.entry("look", Clients::look),
        Map.entry("rebalance", Groups::rebalance),
        Map.entry("transform", Groups::transform),
        Map.entry("ride", Ride::ride),
        Map.entry("administer", Administration::administer),
        Map.entry("admin", Administration::area),
        Map.entry("tool", Tools::run));

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Tools.keepRunning();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.write((JSON.writeValueAsString(answer(line)) + "\n").getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static Object answer(String line) {
        try {
            JsonNode command = JSON.readTree(line);
            return COMMANDS.get(command.get("do").asText()).run(command);
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            return Map.of("error", trace.toString());
        }
    }
}
