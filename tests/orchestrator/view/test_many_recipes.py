"""Charts by recipe of a sweep with more recipes than colours."""

from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger
from orchestrator.view._progress import NAMED, progress
from tests.charts import check_chart, layer_of, rows_of


def test_the_recipes_with_the_lowest_objective_have_colours_and_others_are_grey(
    tmp_path, journal_writer
):
    writer = journal_writer(tmp_path / "night", "night")
    writer.start(spec={"search": {"objective": "ece"}})
    for number in range(NAMED + 2):
        study = writer.open(f"r{number}", trials=2)
        for trial in range(2):
            key = writer.begin(study, trial)
            for step in (1, 2):
                writer.write("epoch", key=key, step=step, metrics={"val_ece": 0.1})
            writer.finish(key, val_ece=0.1)
            writer.score(key, (0.5 if number in (0, 5) else 0.1) + trial / 100)
        writer.close(study, writer.key(study, 0))
    named = [f"r{number}" for number in range(NAMED + 2) if number not in (0, 5)]
    best, bands = progress(Ledger(iterate_events(writer.path, kinds=None), ("val_ece",)))
    for chart, name in ((best, "best"), (bands, "band")):
        check_chart(chart)
        colour = layer_of(chart, name)["encoding"]["color"]
        assert colour["condition"]["scale"]["domain"] == named
        assert colour["value"] == "var(--reference)"
        # Those drawn last are in front.
        assert list(dict.fromkeys(row["recipe"] for row in rows_of(chart, name))) == [
            "r0",
            "r5",
            *named,
        ]
