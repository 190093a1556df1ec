import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.kafka.common.utils.Exit;

/** Kafka's command line tools: their main methods, with streams of their own, and without the end of the process. */
class Tools {
    private static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    private static final List<Runnable> HOOKS = new ArrayList<>();
    private static Integer firstCode; // some tools catch what their own exit throws here, and then exit with 1

    /** From here on a tool that wants to end the process ends its own run only. */
    static void keepRunning() {
        Exit.Procedure end = (code, message) -> {
            firstCode = firstCode == null ? code : firstCode;
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
    }

    static Object run(JsonNode command) throws Exception {
        List<String> args = new ArrayList<>();
        command.get("args").forEach(arg -> args.add(arg.asText()));
        InputStream in = System.in;
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(command.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        int code;
        try {
            code = call(command.get("main").asText(), args.toArray(new String[0]));
        } finally {
            HOOKS.forEach(Runnable::run);
            HOOKS.clear();
            System.out.flush();
            System.setIn(in);
            System.setOut(out);
            System.setErr(err);
        }
        return Map.of(
            "code", code,
            "out", printed.toString(StandardCharsets.UTF_8),
            "err", complained.toString(StandardCharsets.UTF_8));
    }

    private static int call(String main, String[] args) throws Exception {
        firstCode = null;
        try {
            Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                error.getCause().printStackTrace();
                return 1;
            }
        }
        return firstCode == null ? 0 : firstCode;
    }
}
