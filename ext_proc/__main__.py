"""`python -m ext_proc` is `forebay`."""

import sys

from ext_proc.cli import main

if __name__ == "__main__":
    sys.exit(main())
