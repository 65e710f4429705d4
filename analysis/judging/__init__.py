"""The simulator against the engine that it stands for: what ``analysis.fidelity`` measures.

:mod:`.engine` starts a server and reads its set-up, :mod:`.decisions` compares admission
sequences, :mod:`.latency` judges predictions by runs of the engine, :mod:`.report` writes.
"""
