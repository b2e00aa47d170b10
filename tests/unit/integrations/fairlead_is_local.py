"""A plugin of pytest: in submitit's own tests, the local executor is Fairlead's."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

from submitit.local import local

from fairlead.integrations.submitit import FairleadExecutor


class Here(FairleadExecutor):
    """Its nodes are this machine, so they have this Python."""

    def __init__(self, folder: str | Path, max_num_timeout: int = 3) -> None:
        super().__init__(folder, max_num_timeout, python=sys.executable)


mock.patch.object(local, "LocalExecutor", Here).start()
