"""`make demo`: a whole elastic job on this machine, with a worker killed halfway for show."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from elasticdl.errors import ElasticDLError
from elasticdl.rpc.master_client import MasterClient

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "demo"
"""Paths that the demo prints are there afterwards, to be looked into."""
LOAD_BACK = """
import sys, numpy, tensorflow
arrays = numpy.load(sys.argv[2])
serve = tensorflow.saved_model.load(sys.argv[1]).signatures["serving_default"]
(name, spec), = serve.structured_input_signature[1].items()
images = tensorflow.constant(arrays["image"].reshape((-1, *spec.shape[1:])), spec.dtype)
(scores,) = serve(**{name: images}).values()
right = (scores.numpy().argmax(1) == arrays["label"].reshape(-1)).mean()
said = "the SavedModel, loaded back by plain TensorFlow, is right"
print(f"{said} on {right:.1%} of {len(images)} test images")
sys.exit(int(right < 0.95))
"""


def say(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def status(job: Path) -> dict[str, Any]:
    """The job's status; empty while its master is not there."""
    try:
        where = json.loads((job / "master.json").read_text())
        client = MasterClient(
            where["address"],
            where["token"],
            "cli",
            away_s=120.0,
            authority=where["authority"] or None,
        )
        try:
            return client.status().to_json()
        finally:
            client.close()
    except (OSError, ElasticDLError):
        return {}


def kill_a_worker_halfway(job: Path, process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the first running worker once half of the records are trained."""
    deadline = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        seen = status(job)
        records = seen.get("records", {"expected": 0})
        if records["expected"] and records["trained"] >= records["expected"] / 2:
            for worker in seen["processes"]:
                where = str(worker.get("where", ""))
                if (
                    worker["role"] == "worker"
                    and worker["state"] == "ready"
                    and where.startswith("pid ")
                ):
                    say(f"half of the records are trained: kill -9 {worker['name']} ({where})")
                    os.kill(int(where.removeprefix("pid ")), signal.SIGKILL)
                    return
        time.sleep(0.05)


def run(*command: str | Path) -> None:
    subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, check=True, timeout=200)


def load_back(export: Path, data: Path) -> None:
    """TensorFlow says much when it is imported; it is shown only if something is wrong."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD_BACK, export, data], capture_output=True, text=True, timeout=200
    )
    print(done.stdout, end="")
    if done.returncode:
        sys.exit(f"{done.stderr}\nthe SavedModel is not what was trained")


def demo(folder: Path) -> None:
    job, output = folder / "job", folder / "export"
    say("make the data: 1,797 images of digits, split into training and test images")
    run("-m", "model_zoo.make_data", "digits", folder / "data")
    say("train digits with 2 workers and 2 parameter servers")
    command = [
        sys.executable, "-m", "elasticdl.cli.main", "train", "--model-zoo", ROOT / "model_zoo",
        "--model-def", "digits", "--training-data", folder / "data/train.npz",
        "--validation-data", folder / "data/test.npz", "--num-epochs", "12",
        "--minibatch-size", "32", "--num-workers", "2", "--num-ps-pods", "2", "--job-dir", job,
        "--output", output,
    ]  # fmt: skip
    print("TensorFlow is imported first, to check the model: 5 to 20 s", flush=True)
    process = subprocess.Popen([str(part) for part in command], cwd=ROOT)
    try:
        kill_a_worker_halfway(job, process)
        if process.wait(timeout=200) != 0:
            sys.exit(f"the job ended with exit code {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    say("load the SavedModel back")
    load_back(output, folder / "data/test.npz")
    say("receipt")
    total = json.loads((job / "receipt.json").read_text())["total"]
    print(json.dumps(total))
    if total["lost"] or total["trained"] != total["expected"]:
        sys.exit("records were lost")


def main() -> None:
    began_s = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    print(
        "A whole elastic job on this machine, in about a minute: it trains, loses a worker halfway,"
        " exports, and the export is loaded back.",
        flush=True,
    )
    demo(FOLDER)
    print(
        f"\ndone in {time.monotonic() - began_s:.0f} s; all that it made stays in {FOLDER} until"
        " the next demo",
        flush=True,
    )


if __name__ == "__main__":
    main()
