"""When nights begin, and who starts them: systemd, cron, Kubernetes or Ray."""
