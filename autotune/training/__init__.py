"""What a training tells of itself while it runs: its times and memory, recorded and judged.

Everything here runs in the user's own process. It never raises into it, never waits for the device,
and is silent beyond a few lines on stderr.
"""
