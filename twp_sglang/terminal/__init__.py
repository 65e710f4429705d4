"""``python -m twp_sglang.top``: a running server in the terminal."""
