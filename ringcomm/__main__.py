"""python -m ringcomm COMMAND ..."""

import sys

from ringcomm.cli import main

sys.exit(main())
