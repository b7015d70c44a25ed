"""Which of a machine's GPUs a worker uses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from elasticdl.cluster.local.machine import CUDA_VISIBLE, least_used, member_gpus, visible_gpus
from elasticdl.errors import UserError
from elasticdl.flag_values import WorkerRange
from elasticdl.model.horovod import refuse_shared_gpus

pytestmark = pytest.mark.core


def test_without_a_word_of_the_environment_gpus_have_the_numbers_from_0(tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path) == ()
    for name in ("nvidia3", "nvidia12", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ("0", "1")


@pytest.mark.parametrize(
    ("named", "gpus"), [("", ()), ("-1", ()), ("2", ("2",)), ("2, GPU-8e1,-1,0", ("2", "GPU-8e1"))]
)
def test_the_environment_names_them_as_it_does_for_cuda(
    tmp_path: Path, named: str, gpus: tuple[str, ...]
) -> None:
    (tmp_path / "nvidia0").touch()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": named}, tmp_path) == gpus


def test_a_list_in_the_jobs_own_variables_gives_all_workers_its_first_gpu(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    for envs, gpus in (({}, ("4", "5")), ({CUDA_VISIBLE: "2,3"}, ("2",)), ({CUDA_VISIBLE: ""}, ())):
        assert member_gpus(envs, {CUDA_VISIBLE: "4,5"}, tmp_path) == gpus
    assert member_gpus({}, {}, tmp_path) == ("0",)


def test_the_first_gpu_with_the_fewest_processes_is_used() -> None:
    assert least_used((), ()) is None
    assert least_used(("a", "b", "c"), ("a", "c", "b", "a")) == "b"
    assert least_used(("a", "b"), ("b", "of another list")) == "a"


@dataclass
class Horovod:
    nccl: bool

    def nccl_built(self) -> bool:
        return self.nccl


@pytest.mark.parametrize(
    ("workers", "gpus", "fits"),
    [((2, 4), 2, "2:2"), ((1, 4), 3, "1:3"), ((4, 4), 2, "2:2"), ((1, 2), 1, "1")],
)
def test_a_ring_on_nccl_needs_a_gpu_for_each_member(
    workers: tuple[int, int], gpus: int, fits: str
) -> None:
    low, high = workers
    wanted = WorkerRange(low=low, high=high)
    with pytest.raises(UserError, match=f"up to {high} workers has {gpus} GPU") as refused:
        refuse_shared_gpus(Horovod(nccl=True), wanted, gpus, of_envs=False)
    assert f"--num-workers {fits}," in refused.value.hint
    refuse_shared_gpus(Horovod(nccl=False), wanted, gpus, of_envs=False)
    for enough in (0, high):
        refuse_shared_gpus(Horovod(nccl=True), wanted, enough, of_envs=False)
