"""Data-quality checks: each is a query for the rows that violate a rule."""

from pyspark.sql import SparkSession

from pipeline.tables import CARRIERS, EVENTS, HOURLY

CHECKS = {
    "a flight is in the table once": f"""
        SELECT flight_id FROM {EVENTS} GROUP BY flight_id HAVING count(*) > 1""",
    "a record of the log is in the table once": f"""
        SELECT log_partition, log_offset FROM {EVENTS} GROUP BY ALL HAVING count(*) > 1""",
    "each carrier is in the dimension": f"""
        SELECT carrier FROM {EVENTS} LEFT ANTI JOIN {CARRIERS} USING (carrier)""",
    "a canceled flight does not arrive": f"""
        SELECT * FROM {EVENTS} WHERE is_canceled AND arr_delay IS NOT NULL""",
    "a delay is between -2 and 48 hours": f"""
        SELECT * FROM {EVENTS} WHERE dep_delay NOT BETWEEN -120 AND 2880""",
    "an hour of a carrier is in the table once": f"""
        SELECT hour, carrier FROM {HOURLY} GROUP BY ALL HAVING count(*) > 1""",
    "no hour has more flights than the table of events": f"""
        SELECT h.hour, h.carrier FROM {HOURLY} h LEFT JOIN (
            SELECT date_trunc('hour', scheduled) AS hour, carrier, count(*) AS flights
            FROM {EVENTS} GROUP BY ALL
        ) e USING (hour, carrier)
        WHERE h.flights > coalesce(e.flights, 0)""",
}


def violations(spark: SparkSession) -> dict[str, int]:
    """Return the number of violations of each rule."""
    counts = (f"SELECT '{rule}', count(*) FROM ({query})" for rule, query in CHECKS.items())
    return dict(spark.sql(" UNION ALL ".join(counts)).collect())
