"""Hooks onto SGLang 0.5.17 to 0.5.23, one module a concern; ``versions`` picks the table."""
