"""`python -m ladder_opt`."""

import sys

from ladder_opt.cli import main

sys.exit(main())
