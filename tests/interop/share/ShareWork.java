import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Members of a share group work on numbers: multiples of ten fail twice before they succeed,
 * multiples of seven are rejected, the others succeed. Prints one line per delivery, and ends when
 * all of the given count are done.
 *
 * <p>Arguments: bootstrap, group, topic, members, numbers, then settings as name=value.
 */
public final class ShareWork {
    private static final AtomicInteger DONE = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        int members = Integer.parseInt(arguments[3]);
        int numbers = Integer.parseInt(arguments[4]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("share.acknowledgement.mode", "explicit");
        for (int at = 5; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        List<Thread> threads = new ArrayList<>();
        for (int member = 0; member < members; member++) {
            Thread thread = new Thread(() -> work(settings, arguments[2], numbers));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static void work(Properties settings, String topic, int numbers) {
        try (KafkaShareConsumer<String, String> consumer =
                new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (DONE.get() < numbers) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                int done = 0;
                for (ConsumerRecord<String, String> record : records) {
                    AcknowledgeType type = verdict(record);
                    consumer.acknowledge(record, type);
                    done += type == AcknowledgeType.RELEASE ? 0 : 1;
                    System.out.println("got " + record.partition() + " " + record.offset() + " "
                        + record.value() + " " + record.deliveryCount().orElse((short) -1) + " " + type.id);
                }
                Map<TopicIdPartition, java.util.Optional<KafkaException>> outcome = consumer.commitSync();
                for (java.util.Optional<KafkaException> error : outcome.values()) {
                    error.ifPresent(failure -> System.out.println("failed " + failure));
                }
                DONE.addAndGet(done);
            }
        }
    }

    private static AcknowledgeType verdict(ConsumerRecord<String, String> record) {
        int number = Integer.parseInt(record.value());
        if (number % 7 == 0) {
            return AcknowledgeType.REJECT;
        }
        boolean fails = number % 10 == 0 && record.deliveryCount().orElse((short) 1) < 3;
        return fails ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
    }
}
