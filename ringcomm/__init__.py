"""ringcomm: ring all-reduce for PyTorch."""

from ringcomm import _load

_load.check_build()

from ringcomm import backend, plan  # noqa: E402

backend.register()
