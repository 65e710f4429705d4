"""``python -m analysis.flashinfer_run``: one machine measured, tuned and compared in one go.

settings.py     what was asked             engine_set_up.py  the server's flags here
stages.py       what there is to do        planning.py       what fits into the minutes
results_folder.py  what is on disk         serving_stage.py  a server, calibrated and loaded
traffic.py      the burst workload         learning.py       identify and tune
commands.py     children of ours           report.py         Markdown, CSV, PNG
report_model.py the model and the loop     run.py            from start to end, and on again
"""
