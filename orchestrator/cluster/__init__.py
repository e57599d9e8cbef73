"""The machines of a sweep: this one, a Ray cluster, or SLURM."""
