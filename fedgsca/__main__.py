"""`python -m fedgsca` is `fedgsca`."""

from fedgsca.cli import main

# Worker processes import this module again and must not start a second command.
if __name__ == "__main__":
    main()
