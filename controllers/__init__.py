"""The token window as a feedback loop: models, laws, analysis, identification and tuning.

Needs numpy, scipy, control, pydantic and matplotlib; knows nothing of SGLang and reads no
clock. Start with docs/control.md, or ``python -m controllers --help``.
"""
