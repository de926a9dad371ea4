"""Groups of all protocols.

`classic`, `consumer`, `share` and `streams` contain one protocol each as a pure state machine
(`group`, `model`, `records`); `common` and `offsets` contain what several of them use. The package
`coordinator` runs them on a broker and writes their records to `__consumer_offsets`.
"""
