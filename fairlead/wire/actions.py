"""Which actions on a run may be asked for twice."""

SETTING_PATH = r"/v1/runs/[0-9a-f]{16}/(stop|complete|suspend|resume|scale)"
"""Of actions that set how a run goes on: the second one changes nothing more. The run is named by
its id, because by the second time a name may be another run's."""
