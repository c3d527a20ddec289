"""ringcomm: ring all-reduce for PyTorch.

Importing it registers the torch.distributed backend "ring". The functions here are the direct
calls; `ringcomm.plan` shows what they do.
"""

import importlib.metadata
import sys
from typing import TYPE_CHECKING

try:
    __version__ = importlib.metadata.version("ringcomm") or "unknown"  # without metadata
except importlib.metadata.PackageNotFoundError:  # found by its path, not installed
    __version__ = "unknown"

# A command imports torch only when it needs it (`ringcomm._library`): usage errors come at once,
# and the doctor works if the import fails. Python imports this package before its __main__, with
# "-m" as argv[0]; ringcomm_command.py sets argv[0] for the console command.
_options = zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
_module = next((value for option, value in _options if option == "-m"), None)
_is_command = (sys.argv[0], _module) == ("-m", "ringcomm") or sys.argv[0] == "-m ringcomm"

if TYPE_CHECKING or not _is_command:
    from ringcomm import _build_check

    _build_check.check_build(__path__)

    from ringcomm._api import *  # noqa: F403
    from ringcomm._api import __all__ as __all__
