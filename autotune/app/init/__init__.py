"""`autotune init`: a commented job file from what lies in a folder and what this machine is."""
