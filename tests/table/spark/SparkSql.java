import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/**
 * Run SQL from standard input, a statement per line, and print a line per result: a JSON array of rows, or `error:` and the reason.
 * The line `incremental TABLE FROM TO` creates the view `incremental` of the rows that were appended between two snapshots.
 * Arguments are settings of the session, NAME=VALUE.
 */
public final class SparkSql {
    public static void main(String[] arguments) throws Exception {
        SparkSession.Builder builder = SparkSession.builder().master("local[1]");
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            builder.config(parts[0], parts[1]);
        }
        SparkSession session = builder.getOrCreate();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            try {
                System.out.println(rows(session, line));
            } catch (Exception error) {
                System.out.println("error: " + String.valueOf(error.getMessage()).replace('\n', ' '));
            }
            System.out.flush();
        }
        session.stop();
    }

    private static String rows(SparkSession session, String line) {
        if (line.startsWith("incremental ")) {
            String[] words = line.split(" ");
            session.read().format("iceberg").option("start-snapshot-id", words[2]).option("end-snapshot-id", words[3])
                .load(words[1]).createOrReplaceTempView("incremental");
            return "[]";
        }
        Dataset<Row> found = session.sql(line);
        List<String> rows = found.toJSON().collectAsList();
        return rows.stream().collect(Collectors.joining(",", "[", "]"));
    }
}
