"""`autotune init`: a commented job file from what lies in a folder and what this machine is."""

from autotune.app.init.write import Written, init_job

__all__ = ["Written", "init_job"]
