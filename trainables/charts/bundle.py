"""Vega, with the options for our pages, as one script."""

import json
import subprocess
import sys
from functools import cache

from trainables.charts.chart import CONFIG, SCHEMA, VERSION

# Vega's own style sheets are disabled, because pages forbid inline styles. The text of a page
# explains colours, so a chart has a legend only if it enables one.
OPTIONS = {
    "mode": "vega-lite",
    "renderer": "svg",
    "actions": False,
    "ast": True,
    "defaultStyle": False,
    "tooltip": {"disableDefaultStyle": True},
    "config": {**CONFIG, "legend": {**CONFIG["legend"], "disable": True}},
}
MAKE = """
import gzip, sys, vl_convert
text = vl_convert.javascript_bundle(sys.argv[1], sys.argv[2])
sys.stdout.buffer.write(gzip.compress(text.encode(), mtime=0))
"""


@cache
def bundle() -> bytes:
    """Return a script that defines ``drawChart(place, specification)``, compressed by gzip."""
    options, schema = json.dumps(OPTIONS), json.dumps({"$schema": SCHEMA})
    embed = f"vegaEmbed(place, {{...{schema}, ...spec}}, {options})"
    command = [sys.executable, "-c", MAKE, f"window.drawChart = (place, spec) => {embed}", VERSION]
    return subprocess.run(command, capture_output=True, check=True).stdout
