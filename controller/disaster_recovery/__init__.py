"""Building the metadata anew from the store when the disks of all controllers are lost. Behind
`penstock controller recover`.
"""
