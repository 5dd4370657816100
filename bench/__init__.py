"""Speed and accuracy, measured: `python -m bench.NAME`."""
