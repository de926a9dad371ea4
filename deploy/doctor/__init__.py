"""`penstock doctor`: what is wrong with a deployment, in a sentence each, and how to mend it (ADR
0030).
"""
