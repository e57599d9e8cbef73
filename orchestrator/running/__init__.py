"""Running a sweep: Ray Tune, the evaluation of what was chosen, and progress."""
