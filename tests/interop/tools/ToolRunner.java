import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs many command line tools of Kafka in one JVM, because a JVM takes a second to start.
 *
 * <p>Each line of stdin is one command: class, stdin of the tool, then its arguments, with
 * U+001F between them; line feeds are U+001E. The response is a line with exit code and number of
 * bytes, then what the tool wrote to stdout and stderr.
 */
public final class ToolRunner {
    private static final int THROWN = 1;
    private static final String HOOK_OF_A_TOOL = "shutdown-hook";

    /** Ends a tool at the place where it would end the process. */
    private static final class Exited extends Error {
        Exited() {
            super("exited", null, false, false);
        }
    }

    /** What a tool has written, until it exits. Tools keep System.out, so it is never replaced. */
    private static final class Captured extends OutputStream {
        private ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        private Integer exitCode;
        private boolean muted;

        @Override
        public synchronized void write(int value) {
            if (!muted) {
                bytes.write(value);
            }
        }

        @Override
        public synchronized void write(byte[] from, int offset, int length) {
            if (!muted) {
                bytes.write(from, offset, length);
            }
        }

        synchronized void clear() {
            bytes = new ByteArrayOutputStream();
            exitCode = null;
            muted = false;
        }

        /** Hooks write after the exit. */
        synchronized void unmute() {
            muted = false;
        }

        synchronized byte[] bytes() {
            return bytes.toByteArray();
        }

        /** The first exit counts: some tools catch what ends them, and exit again. */
        synchronized void exit(int code) {
            muted = true;
            if (exitCode == null) {
                exitCode = code;
            }
        }

        synchronized int exitCode() {
            return exitCode == null ? 0 : exitCode;
        }
    }

    private static final Captured CAPTURED = new Captured();
    private static final List<Runnable> SHUTDOWN_HOOKS = new CopyOnWriteArrayList<>();

    public static void main(String[] args) throws Exception {
        PrintStream responses = System.out;
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream captured = new PrintStream(CAPTURED, true, StandardCharsets.UTF_8);
        System.setOut(captured);
        System.setErr(captured);
        Exit.Procedure exit =
                (code, message) -> {
                    CAPTURED.exit(code);
                    throw new Exited();
                };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> SHUTDOWN_HOOKS.add(hook));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] fields = line.replace('\u001e', '\n').split("\u001f", -1);
            String[] arguments = Arrays.copyOfRange(fields, 2, fields.length);
            CAPTURED.clear();
            SHUTDOWN_HOOKS.clear();
            System.setIn(new ByteArrayInputStream(fields[1].getBytes(StandardCharsets.UTF_8)));
            run(fields[0], arguments);
            CAPTURED.unmute();
            runShutdownHooks();
            respond(responses);
        }
    }

    private static void respond(PrintStream responses) throws IOException {
        byte[] bytes = CAPTURED.bytes();
        responses.println(CAPTURED.exitCode() + " " + bytes.length);
        responses.write(bytes);
        responses.flush();
    }

    private static void run(String tool, String[] arguments) {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException wrapped) {
            if (!(wrapped.getCause() instanceof Exited)) {
                wrapped.getCause().printStackTrace();
                CAPTURED.exit(THROWN);
            }
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            CAPTURED.exit(THROWN);
        }
    }

    private static void runShutdownHooks() throws ReflectiveOperationException {
        SHUTDOWN_HOOKS.forEach(Runnable::run);
        SHUTDOWN_HOOKS.clear();
        for (Thread hook : hooksOfTheJvm()) {
            if (hook.getName().endsWith(HOOK_OF_A_TOOL)) {
                Runtime.getRuntime().removeShutdownHook(hook);
                hook.run();
            }
        }
    }

    /** Some tools give their hook to the JVM; this needs --add-opens java.base/java.lang. */
    private static List<Thread> hooksOfTheJvm() throws ReflectiveOperationException {
        Field hooks = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
        hooks.setAccessible(true);
        List<Thread> found = new ArrayList<>();
        for (Object hook : ((Map<?, ?>) hooks.get(null)).keySet()) {
            found.add((Thread) hook);
        }
        return found;
    }
}
