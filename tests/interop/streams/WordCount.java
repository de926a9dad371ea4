import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts the words of topic `lines` into topic `totals` until it is stopped.
 *
 * <p>Arguments: bootstrap servers, application id, state directory, processing guarantee, group
 * protocol. It has a repartition topic, which it purges with DeleteRecords, and a changelog topic,
 * which is compacted. The cache is off, so that every word writes a record to each of them.
 */
public final class WordCount {
    private static final int WORDS_PER_PAUSE = 3;

    public static void main(String[] args) throws InterruptedException {
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[3]);
        properties.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, args[4]);
        // Records leave at once and commits are rare: an application that is killed has written
        // what it has not committed.
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1_000);
        properties.put(StreamsConfig.producerPrefix("linger.ms"), 5);
        properties.put(StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 200);
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        if (args[4].equals("classic")) {
            properties.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6_000);
            properties.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 300);
        }
        // The transaction of a killed application ends by this timeout.
        properties.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 10_000);

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("lines", Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long, org.apache.kafka.streams.state.KeyValueStore<
                                org.apache.kafka.common.utils.Bytes, byte[]>>
                        as("counts")
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.Long())
                        .withLoggingEnabled(Map.of("min.cleanable.dirty.ratio", "0")))
                .toStream()
                .peek((word, count) -> pause(count))
                .to("totals", Produced.with(Serdes.String(), Serdes.Long()));

        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        CountDownLatch stopped = new CountDownLatch(1);
        streams.setStateListener((now, before) -> System.out.println(before + " -> " + now));
        Runtime.getRuntime()
                .addShutdownHook(
                        new Thread(
                                () -> {
                                    streams.close();
                                    stopped.countDown();
                                }));
        streams.start();
        stopped.await();
    }

    /** Takes 1 ms for three words, so that the application can be stopped while it counts. */
    private static void pause(long count) {
        if (count % WORDS_PER_PAUSE == 0) {
            try {
                Thread.sleep(1);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
