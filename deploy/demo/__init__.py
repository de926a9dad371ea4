"""The main job on real data, as a story with a checked end."""
