"""Training a script and its rewrite side by side: same training, and how much faster?

harness.py    runs inside the user's interpreter, around the script, and records every training step
sandbox.py    keeps everything that a run writes away from the user's files
gpu.py        what the GPUs do meanwhile
process.py    starts one run, ends it in time, leaves no process behind
record.py     what a run recorded, as the rest of the runner sees it
speed.py      steady-state throughput, and the ratio of two scripts with its interval
parity/       do two scripts train the same?
validate.py   which runs are needed for a verdict, and the verdict
tune.py       which codemods pay on this machine
report.py     the verdict as text and as JSON
page.py       the report as one HTML file
commands.py   what the command line calls
"""
