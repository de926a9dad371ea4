"""Recovery of a dead broker's WAL, and detection of lost slots.

The other modules involved in a failover are `controller/active/sessions.py` (detects that a broker
is gone), `controller/managers/failover.py` (assigns the WAL and elects leaders), and
`broker/background/recovery.py` (runs the recovery).
"""
