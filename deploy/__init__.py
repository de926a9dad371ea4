"""Everything about running it: the `penstock` command, the local cluster, the demo."""

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.deploy: the folder deploy is no package of its own")
