"""What `penstock balance` and `penstock nodes` ask the controller about loads."""
