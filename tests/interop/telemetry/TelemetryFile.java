import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/**
 * Make Kafka's broker take the metrics of its clients: each push becomes a line of JSON in the file
 * of the setting `telemetry.file`. A push whose data begins with "throw" fails.
 */
public final class TelemetryFile implements ClientTelemetry, MetricsReporter, ClientTelemetryReceiver {
    private Path file;

    @Override
    public void configure(Map<String, ?> settings) {
        Object name = settings.get("telemetry.file");
        file = name == null ? null : Path.of(name.toString());
    }

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return file == null ? null : this;
    }

    @Override
    public synchronized void exportMetrics(AuthorizableRequestContext context, ClientTelemetryPayload payload) {
        ByteBuffer buffer = payload.data();
        byte[] data = new byte[buffer.remaining()];
        buffer.duplicate().get(data);
        if (new String(data, StandardCharsets.ISO_8859_1).startsWith("throw")) {
            throw new IllegalStateException("the data says so");
        }
        String line = String.format(
            "{\"client_id\": \"%s\", \"client_instance_id\": \"%s\", \"terminating\": %b,"
                + " \"content_type\": \"%s\", \"data\": \"%s\"}%n",
            context.clientId(), payload.clientInstanceId(), payload.isTerminating(),
            payload.contentType(), Base64.getEncoder().encodeToString(data));
        try {
            Files.writeString(file, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
    }

    @Override
    public void metricChange(KafkaMetric metric) {
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
    }

    @Override
    public void close() {
    }
}
