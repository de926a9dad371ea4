import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Runs applications as users with different rights, all at once, until it is stopped. Each counts
 * the words of topic `words` into topic `totals-NAME`, by a repartition topic, which it purges, and
 * a store with a changelog.
 *
 * <p>Arguments: bootstrap servers, state directory, a file with a line for each application: name,
 * group protocol, processing guarantee. The name is also that of the user and the application id.
 * Prints `NAME fails: CAUSE` for an application that ends by an error.
 */
public final class SecuredCounts {
    public static void main(String[] args) throws IOException, InterruptedException {
        for (String line : Files.readAllLines(Path.of(args[2]))) {
            String[] fields = line.split(" ");
            start(args[0], args[1], fields[0], fields[1], fields[2]);
        }
        Thread.currentThread().join();
    }

    private static void start(
            String bootstrap, String state, String name, String protocol, String guarantee) {
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, name);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, state);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, guarantee);
        properties.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, protocol);
        properties.put(StreamsConfig.SECURITY_PROTOCOL_CONFIG, "SASL_PLAINTEXT");
        properties.put("sasl.mechanism", "PLAIN");
        properties.put(
                "sasl.jaas.config",
                "org.apache.kafka.common.security.plain.PlainLoginModule required"
                        + String.format(" username=\"%s\" password=\"secret\";", name));
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        properties.put(StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 200);
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("words", Consumed.with(Serdes.String(), Serdes.String()))
                .groupBy((key, word) -> word, Grouped.with("by-word", Serdes.String(), Serdes.String()))
                .count(
                        Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                                .withKeySerde(Serdes.String())
                                .withValueSerde(Serdes.Long())
                                .withLoggingEnabled(Map.of()))
                .toStream()
                .to("totals-" + name, Produced.with(Serdes.String(), Serdes.Long()));

        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(
                error -> {
                    Throwable cause = error;
                    while (cause.getCause() != null) {
                        cause = cause.getCause();
                    }
                    String kind = cause.getClass().getSimpleName();
                    System.out.println(name + " fails: " + kind + ": " + cause.getMessage());
                    return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
                });
        streams.start();
    }
}
