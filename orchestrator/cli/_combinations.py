"""Options that exclude each other or need another one: refused before a command begins."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from typer.core import TyperCommand

from trainables.common.errors import InputError


class Rule(NamedTuple):
    """What an option excludes, separated by spaces, and why; but not where one of ``unless`` is."""

    option: str
    others: str
    why: str
    unless: str = ""


PRINTS = Rule("--json", "--format", "--json is a format")
ASKS = "only one place is asked for runs"
EXCLUDED: Mapping[str, tuple[Rule, ...]] = {
    "demo": (Rule("--dry-run", "--fresh --quiet", "a dry run only shows the plan"),),
    "run": (
        Rule("--dry-run", "--fresh --address --quiet --take", "a dry run only shows the plan"),
        Rule("--resume", "--fresh", "--fresh starts over instead of resuming"),
    ),
    "submit": (Rule("--slurm", "--address --wait", "`calsweep status` shows a job of SLURM"),),
    "best": (
        PRINTS,
        Rule("--out", "--format --json", "--out writes YAML and JSON"),
        Rule("--tracking-uri", "--storage", ASKS, "--promote"),
    ),
    "reproduce": (Rule("--tracking-uri", "--storage", ASKS),),
    "compare": (PRINTS,),
    "claims": (PRINTS,),
    "ranks": (Rule("--tracking-uri", "--storage", ASKS),),
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
}


class Command(TyperCommand):
    """A command that first looks at which options were given together."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            InputError: If two options exclude each other, or one lacks another that it needs.
        """
        name = " ".join(ctx.command_path.split()[1:])
        given = {
            parameter.opts[0]
            for parameter in self.params
            if parameter.name and ctx.get_parameter_source(parameter.name).name == "COMMANDLINE"
        }
        for problem in problems(name, given):
            raise InputError(problem)
        return super().invoke(ctx)


def problems(command: str, given: set[str]) -> Iterator[str]:
    """Yield a line for each pair of options that cannot be given together, or not alone."""
    for rule in EXCLUDED.get(command, ()):
        if rule.option in given and not given & {*rule.unless.split()}:
            for other in rule.others.split():
                if other in given:
                    yield f"{rule.option} and {other} exclude each other: {rule.why}"
    for needed, options in NEEDED.get(command, {}).items():
        for option in options.split():
            if option in given and needed not in given:
                yield f"{option} has no effect without {needed}: add {needed} or leave it out"
