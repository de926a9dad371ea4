import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Two members of a group that commit what they poll. Arguments: classic, consumer or share;
 * bootstrap servers, topic, group.
 *
 * <p>Prints "assigned MEMBER", "committed MEMBER" and "error MEMBER TEXT".
 */
public final class Members {
    private static final Duration POLL = Duration.ofMillis(100);

    public static void main(String[] args) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[1]);
        properties.put("group.id", args[3]);
        properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("value.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("reconnect.backoff.ms", "10");
        properties.put("retry.backoff.ms", "20");
        // Without its only broker, a client forgets the partitions, and the leader of a group rejoins (KIP-1102).
        properties.put("metadata.recovery.strategy", "none");
        boolean shares = args[0].equals("share");
        if (!shares) {
            properties.put("group.protocol", args[0]);
            properties.put("auto.offset.reset", "earliest");
            properties.put("enable.auto.commit", "false");
        }
        if (args[0].equals("classic")) {
            properties.put("heartbeat.interval.ms", "100");
        }
        for (int member = 0; member < 2; member++) {
            int number = member;
            new Thread(() -> run(shares, properties, args[2], number)).start();
        }
    }

    private static void run(boolean shares, Properties properties, String topic, int member) {
        try {
            if (shares) {
                share(properties, topic, member);
            } else {
                consume(properties, topic, member);
            }
        } catch (Exception error) {
            error.printStackTrace(System.out);
            System.out.println("error " + member + " " + error);
        }
    }

    private static void consume(Properties properties, String topic, int member) {
        ConsumerRebalanceListener listener = new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                System.out.println("assigned " + member);
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

            @Override
            public void onPartitionsLost(Collection<TopicPartition> partitions) {
                System.out.println("error " + member + " lost " + partitions);
            }
        };
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
            consumer.subscribe(List.of(topic), listener);
            while (true) {
                if (!consumer.poll(POLL).isEmpty()) {
                    consumer.commitSync();
                    System.out.println("committed " + member);
                }
            }
        }
    }

    /** A broken connection releases the records, so that their acknowledgement may come too late. */
    private static void share(Properties properties, String topic, int member) {
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(topic));
            while (true) {
                if (consumer.poll(POLL).isEmpty()) {
                    continue;
                }
                Map<TopicIdPartition, Optional<KafkaException>> outcome = consumer.commitSync();
                boolean failed = false;
                for (Optional<KafkaException> error : outcome.values()) {
                    failed |= error.isPresent();
                    if (error.isPresent()) {
                        System.out.println("refused " + member + " " + error.get());
                    }
                }
                if (!failed) {
                    System.out.println("committed " + member);
                }
            }
        }
    }
}
