"""`python -m bench.consistency`: see `bench.consistency.checks`."""

import sys

from bench.consistency.checks import main

if __name__ == "__main__":
    sys.exit(main())
