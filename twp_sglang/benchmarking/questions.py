"""GSM8K questions, or a handful of this package's own where the data set is absent.

The data folder is named by the environment variable TWP_DATA_DIR. GSM8K
(Cobbe et al., arXiv 2110.14168, MIT licence) is the file ``gsm8k/test.jsonl`` of
github.com/openai/grade-school-math.
"""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path

from controllers.laws.base import FrozenModel

_CHECKOUT = Path(__file__).resolve().parents[2]


class Questions(FrozenModel):
    """Question texts and where they came from, for the record of a run."""

    source: str
    texts: tuple[str, ...]


def data_folder() -> Path | None:
    """The data folder: TWP_DATA_DIR, else ``../shared/data`` beside a checkout, else None.

    Raises:
        ValueError: TWP_DATA_DIR is set to something that is no folder.
    """
    named = os.environ.get("TWP_DATA_DIR")
    if named:
        if not Path(named).is_dir():
            raise ValueError(f"TWP_DATA_DIR is '{named}', which is no folder; mend or unset it")
        return Path(named)
    folder = _CHECKOUT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


def load_questions() -> Questions:
    """GSM8K's test questions where the data folder has them, else the bundled ones.

    Raises:
        ValueError: TWP_DATA_DIR is no folder, or a line of the file holds no question.
    """
    folder = data_folder()
    path = folder / "gsm8k" / "test.jsonl" if folder else None
    if path is None or not path.is_file():
        text = resources.files(__package__).joinpath("questions.txt").read_text("utf-8")
        return Questions(source="bundled questions", texts=tuple(text.splitlines()))
    texts = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        try:
            texts.append(str(json.loads(line)["question"]))
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path} line {number}: no JSON object with a 'question'") from None
    if not texts:
        raise ValueError(f"{path}: holds no question")
    return Questions(source="GSM8K test", texts=tuple(texts))
