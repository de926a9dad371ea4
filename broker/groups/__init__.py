"""Groups of all protocols.

`classic`, `consumer`, `share` and `streams` each implement one protocol as a pure state machine
(`group`, `model`, `records`); `common` and `offsets` contain the shared parts. The package
`coordinator` runs the state machines on a broker and writes their records to `__consumer_offsets`.
"""
