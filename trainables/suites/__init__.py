"""Suites: what a chosen configuration is measured on beside its clean test set."""

from trainables.suites._base import Suite
from trainables.suites._data import SuiteData
from trainables.suites._evaluate import evaluate_suite, pooled
from trainables.suites._prepare import prepare_suite, suite_directory
from trainables.suites._registry import SUITES, check_suites, find_suite, suite_names
from trainables.suites._scores import auroc, fpr_at_tpr

__all__ = [
    "SUITES",
    "Suite",
    "SuiteData",
    "auroc",
    "check_suites",
    "evaluate_suite",
    "find_suite",
    "fpr_at_tpr",
    "pooled",
    "prepare_suite",
    "suite_directory",
    "suite_names",
]
