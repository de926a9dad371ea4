"""Run the command `penstock` as `python -m penstock`."""

from penstock.deploy.cli.__main__ import main

if __name__ == "__main__":
    main()
