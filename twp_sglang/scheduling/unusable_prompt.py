"""Prompts that no engine can compute: empty ones, and token ids that the model does not have.

SGLang looks at neither in every interface, and its scheduler process ends with the step that
meets one: a single request would end everybody's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def unusable(ids: Sequence[int], vocabulary: int | None) -> str | None:
    """Why a prompt cannot be computed, or None where it can.

    Args:
        ids: token ids of the prompt.
        vocabulary: how many ids the model has, from 0 on; None leaves their values unchecked.

    Returns:
        A reason in words, to follow "the request", or None.
    """
    if not len(ids):
        return "has an empty prompt: give at least one token"
    if vocabulary is None:
        return None
    values = np.asarray(ids)
    for worst in (int(values.min()), int(values.max())):
        if not 0 <= worst < vocabulary:
            return (
                f"has token id {worst} in its prompt, which the model does not know: ids go from "
                f"0 to {vocabulary - 1}"
            )
    return None
