"""Kafka record batches as bytes: headers without copies, records when somebody really needs
them.
"""
