"""Write what the log cache holds into objects, commit it, and close streams without rewriting a
byte.
"""
