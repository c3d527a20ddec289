"""python -m ringcomm demo | doctor"""

import sys

from ringcomm.cli import main

sys.exit(main())
