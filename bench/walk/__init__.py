"""The walk: the product's own commands, typed one after the other as it prints them.

`python -m bench.walk` goes through tune, run, verify, probe and export in a new folder elsewhere.
It types nothing that the product did not print: the first commands stand in README.md and the job
file, the others in the answers. Each leg then holds what was printed against itself. How long
anything takes is not looked at, so a busy machine makes the walk longer and nothing else.
"""
