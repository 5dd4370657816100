"""Files that start a pick on somebody's machines: SkyPilot, Slurm, dstack, Kubernetes."""
