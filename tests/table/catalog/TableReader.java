import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.io.CloseableIterable;

/** Print partition, offset and n of all rows of a table, as Iceberg's own client reads them. Arguments: the URI and the table. */
public final class TableReader {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties = new HashMap<>();
        properties.put("type", "rest");
        properties.put("uri", arguments[0]);
        Catalog catalog = CatalogUtil.buildIcebergCatalog("reader", properties, new Configuration());
        Table table = catalog.loadTable(TableIdentifier.parse(arguments[1]));
        List<String> lines = new ArrayList<>();
        try (CloseableIterable<Record> rows = IcebergGenerics.read(table).build()) {
            for (Record row : rows) {
                lines.add(row.getField("_kafka_partition") + " " + row.getField("_offset") + " " + row.getField("n"));
            }
        }
        Collections.sort(lines);
        lines.forEach(System.out::println);
    }
}
