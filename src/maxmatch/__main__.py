"""`python -m maxmatch`: the command line."""

from maxmatch.cli.main import main

if __name__ == "__main__":
    main()
