"""What a type of run is: its fields, what is said about wrong ones, what is refused, and its plan.

Each type is one subclass with one instance, next to the struct of its fields. `types` lists them,
and the rest of the controller asks the instance and never which type it is.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

import msgspec

from fairlead.configuration.convert import Guide, convert, guide_to
from fairlead.configuration.runs.checks import check_run
from fairlead.configuration.runs.common import RunFields
from fairlead.configuration.runs.groups import GroupPlan
from fairlead.configuration.runs.job import Defaults
from fairlead.model.service import Serves, ServicePolicy
from fairlead.model.spec import RunPolicy, RunType
from fairlead.model.sweep import SweepPlan

C = TypeVar("C", bound=RunFields)


class RunDefinition(ABC, Generic[C]):
    run_type: ClassVar[RunType]
    fields: type[C]
    hints: ClassVar[Mapping[str, str]]
    """What is said of names that are no fields of this type."""
    withheld: ClassVar[frozenset[str]] = frozenset()
    """Fields of every run that this type refuses, each with a sentence of its own."""

    def read(self, data: Mapping[str, object]) -> C:
        """Return the fields, checked. Raises ConfigurationError for the first fault."""
        written: C = convert(data, self.fields, guide=self.guide)
        self.check(written)
        check_run(written, self.groups(written), self.parameters(written))
        return written

    @functools.cache  # noqa: B019  one instance for each type, which lives as long as the program
    def guide(self) -> Guide:
        """Return what is said of the fields when one is wrong."""
        guide = guide_to(self.fields, hints=self.hints)
        given = {
            path: allowed
            for path, allowed in guide.allowed.items()
            if path.partition(".")[0] not in self.withheld
        }
        return msgspec.structs.replace(guide, allowed=given)

    @abstractmethod
    def check(self, written: C) -> None:
        """Raise ConfigurationError for fields that contradict each other in this type."""

    @abstractmethod
    def groups(self, written: C) -> tuple[GroupPlan, ...]:
        """Return the groups of its jobs, at least one. Raises ConfigurationError."""

    @abstractmethod
    def policy(self, written: C, defaults: Defaults) -> RunPolicy: ...

    def serves(self, written: C) -> Serves | None:
        """Return what its jobs offer to the proxy; None: nothing."""
        return None

    def sweep(self, written: C) -> SweepPlan | None:
        """Return its parameter sets; None: it is no sweep."""
        return None

    def parameters(self, written: C) -> tuple[str, ...] | None:
        """Return the names of its parameters; None: they are in a file."""
        return ()

    def service(self, written: C) -> ServicePolicy | None:
        """Return how its replicas are kept; None: it is no service."""
        return None

    def gateway(self, written: C) -> bool | str | None:
        """Return the gateway's name; True: the default one; False: none; None: nothing is said."""
        return None
