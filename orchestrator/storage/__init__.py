"""Read and write a storage folder: journals, results and provenance of sweeps."""
