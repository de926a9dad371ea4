"""Run Penstock's main job on real data and check the result."""
