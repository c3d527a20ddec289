"""Whether this is a rehearsal, on a machine without a GPU, and what its files say of themselves."""

import os

ON = os.environ.get("RINGCOMM_REHEARSE") == "1"
PATIENCE = 5 if ON else 1  # times a limit: rehearsals are for small and busy machines, too
LABEL = "REHEARSAL without a GPU: no figure here is a measurement"
