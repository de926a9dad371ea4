import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetCommitCallback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's Java clients. Arguments: what to do, bootstrap servers, topic, number of records.
 *
 * <p>A line of stdout says what was acknowledged, committed or read. The exit code is 1 after an
 * error that an application cannot handle.
 */
public final class Clients {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final int PAUSE_MS = 2;
    private static final int PAUSE_OF_READER_MS = 20;

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[3]);
        switch (args[0]) {
            case "produce" -> produce(args[1], args[2], count);
            case "transact" -> transact(args[1], args[2], count);
            case "consume" -> consume(args[1], args[2], count);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static Properties properties(String bootstrap) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("metadata.max.age.ms", "1000");
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        return properties;
    }

    /** Writes numbers to partition 0 with several requests in flight. */
    private static void produce(String bootstrap, String topic, int count) throws Exception {
        Properties properties = properties(bootstrap);
        properties.put("linger.ms", "0");
        AtomicInteger failures = new AtomicInteger();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties)) {
            for (int number = 0; number < count; number++) {
                String value = Integer.toString(number);
                producer.send(
                        new ProducerRecord<>(topic, 0, null, value),
                        (metadata, error) -> {
                            if (error != null) {
                                failures.incrementAndGet();
                                error.printStackTrace(System.out);
                            } else {
                                System.out.println("acknowledged " + value);
                            }
                        });
                Thread.sleep(PAUSE_MS);
            }
        }
        System.exit(failures.get() == 0 ? 0 : 1);
    }

    /** Writes each number to both partitions and as an offset, in a transaction of its own. */
    private static void transact(String bootstrap, String topic, int count) throws Exception {
        Properties properties = properties(bootstrap);
        properties.put("transactional.id", "java");
        properties.put("transaction.timeout.ms", "5000");
        properties.put("group.id", "java");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties);
                KafkaConsumer<String, String> group = new KafkaConsumer<>(properties)) {
            producer.initTransactions();
            for (int number = 0; number < count; ) {
                if (took(producer, group, topic, number)) {
                    System.out.println("committed " + number);
                    number++;
                }
            }
        }
    }

    /** Returns whether the transaction took place. False: it was aborted. */
    private static boolean took(
            KafkaProducer<String, String> producer,
            KafkaConsumer<String, String> group,
            String topic,
            int number)
            throws ExecutionException, InterruptedException {
        producer.beginTransaction();
        try {
            for (int partition = 0; partition < 2; partition++) {
                producer.send(
                        new ProducerRecord<>(topic, partition, null, Integer.toString(number)));
            }
            producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(number + 1)),
                    group.groupMetadata());
        } catch (ProducerFencedException
                | OutOfOrderSequenceException
                | AuthorizationException
                | UnsupportedVersionException error) {
            throw error;
        } catch (KafkaException error) {
            System.out.println("aborted " + number + " " + error);
            producer.abortTransaction();
            return false;
        }
        while (true) {
            try {
                producer.commitTransaction();
                return true;
            } catch (TimeoutException error) {
                System.out.println("repeated " + number);
            } catch (ProducerFencedException error) {
                throw error;
            } catch (KafkaException error) {
                System.out.println("aborted " + number + " " + error);
                producer.abortTransaction();
                return false;
            }
        }
    }

    /** Reads in the consumer protocol until it has seen so many records; commits as it goes. */
    private static void consume(String bootstrap, String topic, int count)
            throws InterruptedException {
        Properties properties = properties(bootstrap);
        properties.put("group.id", "java");
        properties.put("group.protocol", "consumer");
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("max.poll.records", "10");
        OffsetCommitCallback logged =
                (offsets, error) -> System.out.println(error == null ? "stored" : "late " + error);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties)) {
            consumer.subscribe(List.of(topic));
            for (int seen = 0; seen < count; ) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                for (ConsumerRecord<String, String> record : records) {
                    System.out.println(
                            "read " + record.partition() + " " + record.offset() + " " + record.value());
                    seen++;
                }
                consumer.commitAsync(logged);
                Thread.sleep(PAUSE_OF_READER_MS);
            }
            consumer.commitSync();
            System.out.println("done");
        }
    }
}
