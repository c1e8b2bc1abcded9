"""`regimen export RUN`: a trained policy on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class ExportArgs:
    """Write a run's policy to a folder of its own: safetensors and JSON, all that `regimen.load_policy` needs, with
    metadata.json and a README.md that say what it is, how it was trained and how good it is."""

    run: str = positional("RUN")
    """Run directory."""
    out: str | None = None
    """Folder to write; by default RUN/export."""
    checkpoint: str = "best"
    """Which policy: `best`, `final` or a step."""
    format: Literal["policy", "stablehlo", "onnx"] = "policy"
    """Also a program that acts without Regimen: `stablehlo` (needs jax only) or `onnx` (needs onnxruntime only; made by
    jax2onnx, `pip install 'regimen[onnx]'`). Its actions are compared with the policy's before it is kept."""


def run(argv: list[str]) -> int:
    args = parse(ExportArgs, argv, "export")

    from regimen.policies.export import export_policy

    print(export_policy(args.run, args.out, args.checkpoint, args.format))
    return 0
