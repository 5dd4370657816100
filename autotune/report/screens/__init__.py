"""The first screen of each command: thirty lines at 80 columns that hold what decides.

Everything else is in `sections/`, which `--verbose`, Markdown and the page show.
"""
