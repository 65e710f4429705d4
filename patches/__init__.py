"""The layer that puts TWP in the place of SGLang's scheduling policy, by SGLang version.

Every hook states what it replaces, why, what of SGLang it relies on, and when it can go;
:mod:`patches.contract` checks that against SGLang's source without importing it.
"""
