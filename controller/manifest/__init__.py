"""Publishing of the public manifest by the active controller. What it says and its bytes are `lake.manifest`'s."""
