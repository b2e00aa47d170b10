"""The types of what the client returns: the documents of the API, and what they are made of."""

from __future__ import annotations

from fairlead.documents.accounts import CallerView, SecretView, TokenView
from fairlead.documents.jobs import (
    AllocationView,
    AttemptOutputsView,
    AttemptView,
    IncarnationView,
    JobView,
    OutputFileView,
    OutputsView,
    StartEndView,
    StartsView,
)
from fairlead.documents.machines import BudgetView, CostsView, OrphanCosts
from fairlead.documents.metrics import (
    GpuMetricPoint,
    GpuMetricsHistory,
    JobMetricsHistory,
    JobUseView,
    MetricPoint,
    MetricsAnswer,
    MetricsHistoryAnswer,
)
from fairlead.documents.nodes import GpuView, NodeAllowsView, NodeEventView, NodeImageView, NodeView
from fairlead.documents.plans import ExplainView, GroupPlanView, PlanView, UnderWayView
from fairlead.documents.runs import (
    AfterView,
    BatchItem,
    ChildView,
    DevEnvironmentView,
    EventView,
    GroupView,
    OccurrenceView,
    RunSummary,
    RunView,
    SwitchView,
)
from fairlead.documents.services import (
    ChangeView,
    DeploymentView,
    DeployView,
    NewServiceKeyView,
    ProbeView,
    ReplicaView,
    ScaleView,
    ServiceGroupView,
    ServiceKeyView,
    ServiceView,
)
from fairlead.documents.sweeps import SetView, SweepPlanView, SweepView
from fairlead.model.answers import (
    Amounts,
    NodeAnswer,
    OfferedPlace,
    PlannedPlace,
    PlannedRent,
    Waiting,
)
from fairlead.model.beginning import SameJob, When
from fairlead.model.costs import CostRow
from fairlead.model.dev_environment import Ide
from fairlead.model.job_links import JobLink, LinkKind
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.service import DeploymentState
from fairlead.model.spec import Band, Role, RunType
from fairlead.model.statuses import (
    AllocationState,
    AttemptStatus,
    IrisState,
    OutputsState,
    RunStatus,
)
from fairlead.model.sweep import SetStatus
from fairlead.wire.errors import ErrorDetail
from fairlead.wire.node import GpuMetrics

__all__ = [
    "AfterView",
    "AllocationState",
    "AllocationView",
    "Amounts",
    "AttemptOutputsView",
    "AttemptStatus",
    "AttemptView",
    "Band",
    "BatchItem",
    "BudgetView",
    "CallerView",
    "ChangeView",
    "ChildView",
    "CostRow",
    "CostsView",
    "DeployView",
    "DeploymentState",
    "DeploymentView",
    "DevEnvironmentView",
    "ErrorDetail",
    "EventView",
    "ExplainView",
    "GpuMetricPoint",
    "GpuMetrics",
    "GpuMetricsHistory",
    "GpuView",
    "GroupPlanView",
    "GroupView",
    "Ide",
    "IncarnationView",
    "IrisState",
    "JobLink",
    "JobMetricsHistory",
    "JobUseView",
    "JobView",
    "LinkKind",
    "MetricPoint",
    "MetricsAnswer",
    "MetricsHistoryAnswer",
    "NewServiceKeyView",
    "NodeAllowsView",
    "NodeAnswer",
    "NodeEventView",
    "NodeImageView",
    "NodeView",
    "OccurrenceView",
    "OfferedPlace",
    "OrphanCosts",
    "OutputFileView",
    "OutputsState",
    "OutputsView",
    "PlanView",
    "PlannedPlace",
    "PlannedRent",
    "ProbeView",
    "Reason",
    "ReplicaView",
    "Role",
    "RunReason",
    "RunStatus",
    "RunSummary",
    "RunType",
    "RunView",
    "SameJob",
    "ScaleView",
    "SecretView",
    "ServiceGroupView",
    "ServiceKeyView",
    "ServiceView",
    "SetStatus",
    "SetView",
    "StartEndView",
    "StartsView",
    "SweepPlanView",
    "SweepView",
    "SwitchView",
    "TokenView",
    "UnderWayView",
    "Waiting",
    "When",
]
