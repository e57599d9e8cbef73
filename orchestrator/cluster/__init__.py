"""The machines that a sweep runs on: this one, a Ray cluster, or one that is submitted to."""
