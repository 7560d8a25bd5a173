"""`python -m fedgsca` is `fedgsca`."""

from fedgsca.cli import main

if (
    __name__ == "__main__"
):  # worker processes import this module again and must not start a second command
    main()
