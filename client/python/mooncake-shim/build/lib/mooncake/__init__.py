"""The import name of Mooncake, provided by Lanner. Only ``mooncake.store`` is here: the transfer engine is another product."""
