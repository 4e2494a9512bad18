"""`python -m jaxtrpo`."""

import sys

from jaxtrpo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
