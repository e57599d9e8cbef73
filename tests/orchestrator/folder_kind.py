"""Makes ``folder:/PATH`` known as a tracking address.

It is apart from the tracker, so that a plugin may import that without registering it again.
"""

from orchestrator.sweep.tracking_uri import TRACKERS
from orchestrator.tracking.folder import FolderTracker

TRACKERS.register("folder")(FolderTracker)
