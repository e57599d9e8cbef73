"""What Ray's exporter tells Prometheus of a sweep, beside what it tells of nodes."""

from ray.util.metrics import Counter, Gauge

from trainables.jobs import Job, Report, StageWork


class Counters:
    """Counts jobs that run and attempts that ended, by stage and end, labelled by the sweep."""

    def __init__(self, sweep: str) -> None:
        self._ended = Counter(
            "calsweep_attempts", "Attempts at jobs that ended.", ("sweep", "stage", "status")
        )
        self._seconds = Counter(
            "calsweep_seconds", "Seconds that jobs computed for.", ("sweep", "stage")
        )
        self._running = Gauge("calsweep_running", "Jobs that were given out.", ("sweep",))
        for each in (self._ended, self._seconds, self._running):
            each.set_default_tags({"sweep": sweep})

    def running(self, jobs: int) -> None:
        """Tell how many jobs are given out."""
        self._running.set(jobs)

    def ended(self, job: Job, report: Report) -> None:
        """Count an attempt that ended."""
        work = job.work
        stage = work.request.stage if isinstance(work, StageWork) else "evaluate"
        self._ended.inc(1, {"stage": stage, "status": report.status.value})
        if report.cost is not None and report.cost.seconds > 0 and not report.cost.reused:
            self._seconds.inc(report.cost.seconds, {"stage": stage})
