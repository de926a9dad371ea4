"""Configs of topics, brokers, groups and loggers."""
