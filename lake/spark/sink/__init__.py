"""`df.write.format("penstock")` and `writeStream`: write rows as records of topics, through the
brokers.
"""
