"""Storage of artifacts: a folder and, optionally, its copy in a bucket."""
