"""One run on a Ray cluster: Ray Train's `JaxTrainer` starts N workers and joins them with `jax.distributed`; in each of
them runs what `--distributed` runs (`processes.py`), so worker 0 is in charge."""

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from regimen.config import layers
from regimen.config.schema import TrainConfig
from regimen.config.trust import named, pledge, source_of, taking
from regimen.errors import ConfigError, LostProcessError, RegimenError
from regimen.files.storage import Json, plain
from regimen.runs.api import resume, train
from regimen.runs.directory import default_path
from regimen.runs.result import Result

LOOPBACK = "127.0.0.1"


def train_on_hosts(
    config: TrainConfig, hosts: int, address: str | None = None, command: str = "", quiet: bool = False
) -> Result:
    """`train` by that many workers of the Ray cluster at `address` (`auto`, HOST:PORT), or of one on this machine.
    Worker 0 writes the run directory, at the path it would have here."""
    out = str((Path(config.out) if config.out else default_path(config)).absolute())
    settings = layers.to_dict(config)
    file, words = source_of(settings), plain(settings, finite=False)
    words = words if file is None else named(words, file)  # a file's words stay the file's in the workers
    job = {"config": words, "out": out, "command": command, "quiet": quiet}
    return launch(job, hosts, address, config.device)


def resume_on_hosts(
    run_dir: str, hosts: int, address: str | None = None, quiet: bool = False, **arguments: Any
) -> Result:
    """`resume` by that many workers; `arguments` are its own."""
    if arguments.get("out") is not None:
        arguments["out"] = str(Path(arguments["out"]).absolute())
    job = {"resume": str(Path(run_dir).absolute()), "arguments": arguments, "quiet": quiet}
    return launch(job, hosts, address, arguments.get("device_name") or "auto")


def work(job: Json) -> dict[str, object]:
    """The run in one worker; returns what came of it."""
    from regimen.files.console import Console

    console = Console(quiet=job["quiet"])
    try:
        with taking(job["pledge"]):
            if "resume" in job:
                result = resume(job["resume"], console=console, **job["arguments"])
            else:
                config = layers.from_dict(job["config"]).replace(out=job["out"])
                result = train(config, command=job["command"], console=console)
    except RegimenError as error:
        return {"error": str(error), "kind": type(error).__name__}
    return plain(result.message())


def launch(job: Json, hosts: int, address: str | None, device: str) -> Result:
    try:
        import ray
        from ray.train import RunConfig, ScalingConfig, TrainingFailedError
        from ray.train.v2.jax import JaxConfig, JaxTrainer
    except ImportError as error:
        raise ConfigError(f"--hosts: Ray Train is not installed ({error}); pip install 'ray[train]'") from error

    if hosts < 1:
        raise ConfigError(f"--hosts: {hosts} is out of range; it must be at least 1")
    job = job | {"pledge": pledge()}
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {"address": "local", "num_cpus": max(hosts, os.cpu_count() or 1), "include_dashboard": False}
        options["_node_ip_address"] = LOOPBACK
    ray.init(log_to_driver=not job["quiet"], logging_level=logging.ERROR, **options)
    try:
        gpus = 0 if device == "cpu" else int(ray.cluster_resources().get("GPU", 0))
        if 0 < gpus < hosts or (device == "gpu" and not gpus):
            raise ConfigError(
                f"--hosts: {hosts} workers, and the cluster has {gpus} GPUs; choose fewer or --device cpu"
            )
        each = {"CPU": 1, "GPU": gpus // hosts} if gpus else {"CPU": 1}
        variables = {"JAX_PLATFORMS": "cuda" if gpus else "cpu"}
        variables |= {name: os.environ[name] for name in ("PYTHONPATH", "XLA_FLAGS") if name in os.environ}
        shared = Path(job.get("out") or job["resume"]).parent  # Ray wants a folder that every worker can see
        shared.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=shared, prefix=".ray-", ignore_cleanup_errors=True) as folder:
            trainer = JaxTrainer(
                work,
                train_loop_config=job,
                jax_config=JaxConfig(use_gpu=True),  # or it joins nobody; JAX_PLATFORMS decides what it joins
                scaling_config=ScalingConfig(
                    num_workers=hosts, use_gpu=bool(gpus), resources_per_worker=each, placement_strategy="SPREAD"
                ),
                run_config=RunConfig(storage_path=folder, worker_runtime_env={"env_vars": variables}),
            )
            message: Any = trainer.fit().return_value
    except TrainingFailedError as error:
        raise LostProcessError(f"--hosts: {' '.join(str(error).split())[:300]}") from error
    finally:
        ray.shutdown()
    return Result.of_message(message)
