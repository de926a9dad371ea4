"""`df.write.format("penstock")` and `writeStream`: rows become records of topics, through the
brokers.
"""
