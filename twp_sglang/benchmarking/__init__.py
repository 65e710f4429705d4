"""Load generator: replays a workload open-loop against a server and records token times.

One module a concern, in the order a run uses them:

arguments            command line -> settings         settings     what a run is asked to do
arrivals             when requests arrive             lengths      how long they are
traces               CSV traces                       questions    GSM8K or bundled questions
prompts              prompts that no cache has seen   workload     the plan of a run
server_probe         what the server says of itself   wire_formats the three request formats
sse                  server-sent events               request_client  one request, measured
replay               open-loop pacing                 progress     the live view
results              the JSON file                    summary      what came out
slo_argument         SLOs on a command line           cautions     what a reader must know
run_command          `bench run`                      compare_command  `bench compare`
tables, figures      terminal and PNG
"""
