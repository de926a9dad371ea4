"""The client side of SASL, and what both sides share: mechanisms and the syntax of SCRAM."""
