"""The paper's tables, each by one command: a plan of jobs, executors that run it, and a report.

reproduction.py  one table from its plan to its report
paper.py         the paper's figures (paper.yaml)
tables.py        which runs each table needs
planner.py       those runs as jobs: pre-training → features → heads and agents → evaluation
jobs.py          a job, and its content-addressed directory
commands.py      the commands that jobs run
costs.py         how long it will take
executors.py     where jobs run: processes of this machine, or a Ray cluster
schedule.py      in which order, and what a failure means for the rest
results.py       what was measured, beside the paper
report.py        Markdown, CSV and one HTML page, with the picture of plot.py
speed.py         the measurement of the table `speed`
"""
