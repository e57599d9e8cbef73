"""The search: the state of a sweep and its Optuna studies. Nothing here imports Ray."""
