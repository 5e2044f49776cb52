"""`python -m loadtest.bench`: the side-by-side table of Warmline, nginx and other LLM routers on this machine."""

import sys

from loadtest.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
