"""Whether this is a rehearsal, on a machine without a GPU, and what its files say of themselves."""

import os

GPUS = int(os.environ.get("RINGCOMM_REHEARSE") or "0")  # that there seem to be
ON = GPUS > 0
PATIENCE = 5 if ON else 1  # times a limit: rehearsals are for small and busy machines, too
LABEL = "REHEARSAL without a GPU: no figure here is a measurement"
