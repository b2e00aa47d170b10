"""The nouns of docs/rules.md 1 as immutable values: a `run` has jobs, a `job` has attempts, and an
`attempt` has what is known of one try. A `sweep` begins the jobs of its sets little by little.

Times are Unix seconds, durations seconds, sizes bytes, CPU is in cores. No field repeats what other
fields tell: failures, preemptions and used resources are derived where they are needed.
"""

from controller.lifecycle.inventory import DEFAULT_FLEET as DEFAULT_FLEET
from controller.lifecycle.inventory import Fleet as Fleet
from controller.lifecycle.inventory import Node as Node
from controller.lifecycle.inventory import NodeAddress as NodeAddress
from controller.lifecycle.inventory import NodeCapacity as NodeCapacity
from controller.lifecycle.inventory import NodeEvent as NodeEvent
from controller.lifecycle.inventory import NodeGpu as NodeGpu
from controller.lifecycle.inventory import QuarantinedTask as QuarantinedTask
from controller.lifecycle.inventory import Registration as Registration
from controller.lifecycle.model.attempt import NO_PAUSE as NO_PAUSE
from controller.lifecycle.model.attempt import Attempt as Attempt
from controller.lifecycle.model.attempt import CollectedOutputs as CollectedOutputs
from controller.lifecycle.model.attempt import Inactivity as Inactivity
from controller.lifecycle.model.attempt import Incarnation as Incarnation
from controller.lifecycle.model.attempt import Interruption as Interruption
from controller.lifecycle.model.attempt import LimitPause as LimitPause
from controller.lifecycle.model.attempt import Pull as Pull
from controller.lifecycle.model.attempt import Seen as Seen
from controller.lifecycle.model.attempt import Serving as Serving
from controller.lifecycle.model.attempt import SignalledEnd as SignalledEnd
from controller.lifecycle.model.attempt import TaskDetails as TaskDetails
from controller.lifecycle.model.attempt import Unrentable as Unrentable
from controller.lifecycle.model.job import Allocation as Allocation
from controller.lifecycle.model.job import Job as Job
from controller.lifecycle.model.job import Past as Past
from controller.lifecycle.model.run import Deployment as Deployment
from controller.lifecycle.model.run import Occurrence as Occurrence
from controller.lifecycle.model.run import PastRunning as PastRunning
from controller.lifecycle.model.run import Run as Run
from controller.lifecycle.model.run import RunState as RunState
from controller.lifecycle.model.run import Switch as Switch
from controller.lifecycle.model.run import TakenOutputs as TakenOutputs
from controller.lifecycle.model.run import Use as Use
from controller.lifecycle.model.sweep import NOTHING_ENDED as NOTHING_ENDED
from controller.lifecycle.model.sweep import EndedSets as EndedSets
from controller.lifecycle.model.sweep import Sweep as Sweep
from controller.lifecycle.model.sweep import SweepContent as SweepContent
from fairlead.model.needs import Amount as Amount
from fairlead.model.needs import Constraint as Constraint
from fairlead.model.needs import GpuNeed as GpuNeed
from fairlead.model.needs import Operator as Operator
from fairlead.model.needs import Resources as Resources
from fairlead.model.needs import StartupOrder as StartupOrder
from fairlead.model.reasons import RetryEvent as RetryEvent
from fairlead.model.spec import Band as Band
from fairlead.model.spec import Group as Group
from fairlead.model.spec import JobRepo as JobRepo
from fairlead.model.spec import JobSpec as JobSpec
from fairlead.model.spec import Limits as Limits
from fairlead.model.spec import OnParentEnd as OnParentEnd
from fairlead.model.spec import RetryPolicy as RetryPolicy
from fairlead.model.spec import Role as Role
from fairlead.model.spec import RunPolicy as RunPolicy
from fairlead.model.spec import RunType as RunType
from fairlead.model.spec import StopCriteria as StopCriteria
from fairlead.model.statuses import NodeStatus as NodeStatus
