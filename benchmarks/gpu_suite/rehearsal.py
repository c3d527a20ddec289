"""Whether this is a rehearsal, on a machine without a GPU, and what its files say of themselves."""

import os

ON = os.environ.get("RINGCOMM_REHEARSE") == "1"
LABEL = "REHEARSAL without a GPU: no figure here is a measurement"
