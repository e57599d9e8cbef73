"""What a sweep leaves in its storage folder: the journal, results and provenance."""
