"""Suites: further test data on which chosen configurations are measured."""

from trainables.data.suites._base import (
    SUITES,
    Part,
    Suite,
    SuiteData,
    check_suites,
    find_suite,
    suite_code,
    suite_names,
)
from trainables.data.suites._prepare import prepare_suite, suite_directory
from trainables.data.suites.ood import auroc, fpr_at_tpr
