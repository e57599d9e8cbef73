"""Where artifacts lie: a folder, and its copy in object storage."""
