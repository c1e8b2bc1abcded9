"""Networks: what reads an observation (`choice.py`, `encoders.py`, `images.py`), what decides (`mlp.py`, `graph.py`)
and what remembers (`recurrent.py`). Only this package imports flax, and only for networks that need it: everything else
sees pure functions and plain-dict parameters."""

from regimen.inputs import Features, Inputs
from regimen.networks.build import (
    NETWORKS,
    EncodedNet,
    Encoder,
    make_encoded,
    make_encoder,
    make_net,
    register_network,
    vector_space,
)
from regimen.networks.choice import choose
from regimen.networks.layers import Net, Settings, Shape, orthogonal
from regimen.networks.recurrent import Core, make_core

__all__ = [
    "NETWORKS",
    "Core",
    "EncodedNet",
    "Encoder",
    "Features",
    "Inputs",
    "Net",
    "Settings",
    "Shape",
    "choose",
    "make_core",
    "make_encoded",
    "make_encoder",
    "make_net",
    "orthogonal",
    "register_network",
    "vector_space",
]
