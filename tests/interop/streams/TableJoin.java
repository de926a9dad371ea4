import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Joins the stream of topic `orders` with the table of the compacted topic `customers` by key, into
 * topic `named`, until it is stopped.
 *
 * <p>Arguments: bootstrap servers, application id, state directory. The topology is optimized: the
 * table has no changelog of its own and is restored from `customers`.
 */
public final class TableJoin {
    public static void main(String[] args) throws InterruptedException {
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        // An order waits until the table has been read as far as the order's time.
        properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        properties.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6_000);
        properties.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 300);
        properties.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 10_000);

        StreamsBuilder builder = new StreamsBuilder();
        Consumed<String, String> strings = Consumed.with(Serdes.String(), Serdes.String());
        KTable<String, String> customers =
                builder.table("customers", strings, Materialized.as("customers-by-id"));
        builder.stream("orders", strings)
                .peek((key, order) -> pause())
                .leftJoin(customers, (order, customer) -> order + " " + customer)
                .to("named", Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(properties), properties);
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

    /** So that the application can be killed while it joins. */
    private static void pause() {
        try {
            Thread.sleep(1);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
