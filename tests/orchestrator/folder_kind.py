"""Makes ``folder:/PATH`` known as a tracking address.

It is apart from the tracker, so that a plugin may import that without registering it again.
"""

from orchestrator.sweep.tracking_uri import TRACKERS
from tests.orchestrator.folder_tracker import FolderTracker

TRACKERS.register("folder")(FolderTracker)
