"""`python -m mspcaps` is the command line."""

import sys

from mspcaps.cli import main

sys.exit(main())
