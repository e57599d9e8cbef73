#!/bin/sh
# One night as a job of a Ray cluster; start it from cron or systemd on any machine that reaches the
# cluster's job server. Ray refuses a second job with the same submission id, so a night runs once.
# The nightly file and the storage are paths that the cluster's nodes see.
set -eu
night=$(date +%F)
exec ray job submit --address "${RAY_JOB_SERVER:-http://127.0.0.1:8265}" \
    --submission-id "nightly-$night" --entrypoint-num-cpus 0 \
    -- calsweep nightly run /storage/nightly.yaml --night "$night" --address auto --quiet
