"""``mooncake.store`` on Lanner; see ``lanner.mooncake``."""

from lanner.mooncake import *  # noqa: F403
from lanner.mooncake import __all__  # noqa: F401
