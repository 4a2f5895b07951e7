"""What benchmarks and training scripts share: a server and its client, the machine, tables of reports.

Imports no module of `bench` or `tuning`. `tuning` imports `measure`; `bench` imports both.
"""
