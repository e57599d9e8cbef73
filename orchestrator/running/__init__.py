"""Running a sweep: Ray Tune, the evaluation of the chosen trials, and progress."""
