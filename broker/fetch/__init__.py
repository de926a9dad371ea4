"""Fetch rules that are not about one partition: long polls and incremental sessions."""
