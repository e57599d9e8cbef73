"""Metrics of a sweep that Ray's exporter sends to Prometheus, in addition to Ray's own."""

from ray.util.metrics import Counter, Gauge

from trainables.jobs import Job, Report, StageWork


class Counters:
    """Counts the running jobs of a sweep, and its ended attempts and their seconds by stage."""

    def __init__(self, sweep: str) -> None:
        self._ended = Counter(
            "calsweep_attempts", "Attempts at jobs that ended.", ("sweep", "stage", "status")
        )
        self._seconds = Counter(
            "calsweep_seconds", "Seconds that jobs computed for.", ("sweep", "stage")
        )
        self._running = Gauge("calsweep_running", "Jobs that were started.", ("sweep",))
        for each in (self._ended, self._seconds, self._running):
            each.set_default_tags({"sweep": sweep})

    def running(self, jobs: int) -> None:
        """Set the number of running jobs."""
        self._running.set(jobs)

    def ended(self, job: Job, report: Report) -> None:
        """Count an attempt that ended, and its seconds unless a stored result was reused."""
        work = job.work
        stage = work.request.stage if isinstance(work, StageWork) else "evaluate"
        self._ended.inc(1, {"stage": stage, "status": report.status.value})
        if report.cost is not None and report.cost.seconds > 0 and not report.cost.reused:
            self._seconds.inc(report.cost.seconds, {"stage": stage})
