"""`python -m jevify`: the same as the `jevify` command."""

import sys

from jevify.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
