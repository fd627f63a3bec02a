"""`python -m ladder_opt`."""

import sys

from ladder_opt.cli.app import main

sys.exit(main())
