"""Commands of ``python -m controllers``, one module each with ``add_parser`` and ``run``."""
