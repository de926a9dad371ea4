"""`python -m penstock` is the command `penstock`."""

from deploy.cli.__main__ import main

if __name__ == "__main__":
    main()
