"""The job as one frozen, validated value, which travels to the master and the workers as JSON.

`job_fields.py` has its fields; `job_checks.py` says what must hold between them.
`elasticdl.cli.request` makes a job of a user's request. This module reads no files and does not
import TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from elasticdl.flag_values import ServerRange
from elasticdl.job_checks import check
from elasticdl.job_choices import Action, Strategy
from elasticdl.job_fields import JobFields
from elasticdl.job_flags import (
    FIELDS,
    SECTIONS,
    is_needed,
    refuse_unknown,
)
from elasticdl.job_problems import missing, problem_of
from elasticdl.kubernetes_flags import ZOO_OF_IMAGES
from elasticdl.shard import Task
from elasticdl.value_checks import refuse_empty, refuse_odd

DATA_FLAGS: Mapping[Task, str] = {
    Task.TRAINING: "--training-data",
    Task.EVALUATION: "--validation-data",
    Task.PREDICTION: "--prediction-data",
}
"""The flag that names the data of a task."""


class JobSpec(JobFields):
    """A whole job.

    Build it with `from_flags`; `model_dump_json` and `model_validate_json` carry it.
    """

    @classmethod
    def from_flags(cls, action: Action, flags: Mapping[str, Any]) -> JobSpec:
        """Build a job from flat names in kebab or snake case.

        Raises SpecError that names the flag, its value and what is expected.
        """
        refuse_unknown(flags)
        fields = {key.replace("-", "_"): value for key, value in flags.items()}
        # A file may have '' for no value: a dry run writes it.
        refuse_empty({name: fields[name] for name in fields if FIELDS[name].default != ""})
        refuse_odd(fields)
        if fields.get("distribution_strategy") == Strategy.ALLREDUCE:
            fields.setdefault("num_ps_pods", 0)
        if fields.get("image_name"):
            fields.setdefault("model_zoo", ZOO_OF_IMAGES)
        nested = {
            section: {name: fields[name] for name in model.model_fields if name in fields}
            for section, model in SECTIONS.items()
        }
        lacking = [
            name
            for name, field in FIELDS.items()
            if not field.is_required() and is_needed(name, action) and not fields.get(name)
        ]
        try:
            spec = cls.model_validate({"action": action, **nested})
        except ValidationError as error:
            raise problem_of(error, SECTIONS, action, lacking) from error
        if lacking:
            raise missing(lacking, action)
        check(spec)
        return spec

    def replace(self, **values: object) -> JobSpec:
        """The same job with other values of these fields, by flat name, without validation."""
        parts = {
            section: {name: values.pop(name) for name in model.model_fields if name in values}
            for section, model in SECTIONS.items()
        }
        changed = {
            section: getattr(self, section).model_copy(update=part)
            for section, part in parts.items()
            if part
        }
        assert values.keys() <= type(self).model_fields.keys(), values
        return self.model_copy(update=changed | values)

    def with_strategy(self, strategy: Strategy) -> JobSpec:
        """The same job with this strategy: with parameter servers or without."""
        servers = self.cluster.num_ps_pods
        if strategy is Strategy.ALLREDUCE:
            servers = ServerRange.just(0)
        elif not servers.low:
            servers = ServerRange.just(1)
        return self.replace(distribution_strategy=strategy, num_ps_pods=servers)
