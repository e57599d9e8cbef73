"""Which commit made a benchmark worse: nights of single commits, a bisection, a gate."""
