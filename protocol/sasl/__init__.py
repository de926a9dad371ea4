"""The client side of SASL, and the parts shared by both sides: mechanisms and the syntax of
SCRAM.
"""
