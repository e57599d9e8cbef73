"""Checks of options before a command begins: pairs that exclude each other, and paths."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from typer.core import TyperCommand

from orchestrator.cli._options import use_paths
from trainables.common.errors import InputError


class Rule(NamedTuple):
    """Options that an option excludes, separated by spaces, and why.

    The rule holds only together with all options of ``when``, and without those of ``unless``.
    """

    option: str
    others: str
    why: str
    unless: str = ""
    when: str = ""


PRINTS = Rule("--json", "--format", "--json is a format")
ASKS = "only one place is asked for runs"
EXCLUDED: Mapping[str, tuple[Rule, ...]] = {
    "run": (
        Rule("--dry-run", "--fresh --address --quiet --take", "a dry run only shows the plan"),
        Rule("--resume", "--fresh", "--fresh starts over instead of resuming"),
        Rule(
            "--reproduce",
            "--resume --dry-run --fresh --address --take",
            "one run is computed again in this process",
        ),
        Rule("--tracking-uri", "--storage", ASKS),
    ),
    "submit": (Rule("--slurm", "--address --wait", "`calsweep status` shows a job of SLURM"),),
    "best": (
        PRINTS,
        Rule("--out", "--format --json", "--out writes YAML and JSON"),
        Rule("--tracking-uri", "--storage", ASKS, "--promote"),
    ),
    "compare": (
        PRINTS,
        Rule(
            "--ranks",
            "--claims --task --baseline --draws --seed --over-seeds --format",
            "all recipes are ranked over all tasks, by figures that are stored",
        ),
        Rule(
            "--claims",
            "--task --baseline --metric --over-seeds",
            "a claim says what is compared by which metric",
        ),
        Rule("--tracking-uri", "--storage", ASKS, when="--ranks"),
    ),
    "ui": (Rule("--optuna", "--host", "Optuna's dashboard is on this machine only"),),
    "doctor": (Rule("--plugin", "--storage --data-root --json", "only the plugin is checked"),),
    "list": (Rule("--storage", "--plugin", "sweeps of a storage come from no plugin"),),
}
NEEDED: Mapping[str, Mapping[str, str]] = {
    "submit": {
        "--slurm": (
            "--nodes --gpus-per-node --slurm-array --time --cpus-per-task --partition --account "
            "--dry-run"
        )
    },
    "plan": {"--nodes": "--gpus-per-node --cpus-per-node"},
    "run": {"--reproduce": "--tolerance --data-root --tracking-uri"},
    "compare": {"--ranks": "--control --out", "--claims": "--claim"},
}


class Command(TyperCommand):
    """A command that first looks at which options were given together."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            InputError: If two options exclude each other, or one lacks another that it needs; see
                also ``use_paths``.
        """
        name = " ".join(ctx.command_path.split()[1:])
        given = {
            parameter.opts[0]
            for parameter in self.params
            if parameter.name and ctx.get_parameter_source(parameter.name).name == "COMMANDLINE"
        }
        for problem in problems(name, given):
            raise InputError(problem)
        use_paths(self.params, ctx.params)
        return super().invoke(ctx)


def problems(command: str, given: set[str]) -> Iterator[str]:
    """Yield a line for each pair of options that cannot be given together, or not alone."""
    for rule in EXCLUDED.get(command, ()):
        if {rule.option, *rule.when.split()} <= given and not given & {*rule.unless.split()}:
            for other in rule.others.split():
                if other in given:
                    yield f"{rule.option} and {other} exclude each other: {rule.why}"
    for needed, options in NEEDED.get(command, {}).items():
        for option in options.split():
            if option in given and needed not in given:
                yield f"{option} has no effect without {needed}: add {needed} or leave it out"
