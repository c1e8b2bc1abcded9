"""An agent for the CAGE challenge 2 that acts like a policy trained with Regimen. It needs numpy and nothing else.

`regimen export RUN --as cage-agent` copies this file as `agent.py` and writes the policy's weights beside it, into
`agent.npz`. In CybORG's evaluation, whose ChallengeWrapper shows an agent 52 bits, the one line to change is

    agent = CageAgent()                                    # from agent import CageAgent
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

HOSTS = 13
DECOYS = 8
FIRST_DECOY, RESTORE = 2, 10  # groups of 13 actions; group g on host h is action 2 + 13 g + h
ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))),
}


def sigmoid(x):
    return 0.5 * (1.0 + np.tanh(0.5 * x))


class CageAgent:
    """Blue: from 52 bits to the number of an action, greedily. Call `end_episode` where an episode ends."""

    def __init__(self, weights=None):
        path = Path(__file__).with_suffix(".npz") if weights is None else Path(weights)
        with np.load(path, allow_pickle=False) as file:
            self.weights = dict(file)
        self.activation = ACTIVATIONS[str(self.weights["activation"])]
        self.observes_history = bool(self.weights["history"])
        self.end_episode()

    def end_episode(self):
        """Forget what was seen and done: the next observation is the first of an episode."""
        self.time = 0
        self.last = np.full(HOSTS, -1)  # step of a host's last alert
        self.exploited = np.zeros(HOSTS, bool)  # hosts that ever had one of an exploit
        self.decoys = np.zeros((HOSTS, DECOYS), bool)  # those that run, as far as the rules tell
        core = self.weights.get("core/cell/dense_h/kernel")
        self.memory = None if core is None else np.zeros(core.shape[0])  # of a recurrent policy

    def get_action(self, observation, action_space=None):
        bits = np.asarray(observation, np.float64).reshape(-1)[: 4 * HOSTS]
        if self.time:
            self.see(bits.reshape(HOSTS, 4))
        x = np.concatenate([bits, self.history()]) if self.observes_history else bits
        action = int(np.argmax(self.logits(x)))
        self.do(action)
        self.time += 1
        return action

    def set_initial_values(self, action_space, observation):
        """CybORG's agents have it; this one knows its actions."""

    def train(self, results):
        """CybORG's agents have it; this one has learned."""

    def see(self, table):
        """Note the alerts of a step: the first two bits of a host are 10 for a scan and 11 for an exploit."""
        self.last[table[:, 0] > 0.5] = self.time
        self.exploited |= table[:, 1] > 0.5

    def do(self, action):
        """Note what an action does to the decoys: one starts where its port is free, and a Restore ends all."""
        group, host = divmod(action - 2, HOSTS)
        if FIRST_DECOY <= group < RESTORE:
            decoy = group - FIRST_DECOY
            blocks = self.weights["decoy_blocks"]  # [8, 8] whether the first decoy has the port that the second needs
            free = not (self.decoys[host] & blocks[:, decoy]).any()
            self.decoys[host, decoy] |= bool(self.weights["decoy_hosts"][decoy, host]) and free
        elif group == RESTORE:
            self.decoys[host] = False

    def history(self):
        """What the policy observes besides the 52 bits: 11 entries for each host."""
        ever = self.last >= 0
        fresh = np.where(ever, 1.0 / (1.0 + self.time - self.last), 0.0)
        return np.column_stack([ever, fresh, self.exploited, self.decoys]).astype(np.float64).reshape(-1)

    def logits(self, x):
        """The score of each action."""
        if "norm/mean" in self.weights:
            x = np.clip((x - self.weights["norm/mean"]) / self.weights["norm/std"], -10.0, 10.0)
        if self.memory is not None:
            x = self.memory = self.remember(self.activation(self.dense("core/embed", x)), self.memory)
        layer = 0
        while f"actor/dense_{layer}/kernel" in self.weights:
            x = self.dense(f"actor/dense_{layer}", x)
            if f"actor/norm_{layer}/scale" in self.weights:
                x = self.layer_norm(f"actor/norm_{layer}", x)
            x = self.activation(x)
            layer += 1
        return self.dense("actor/head", x)

    def dense(self, name, x):
        y = x @ self.weights[f"{name}/kernel"]
        return y + self.weights[f"{name}/bias"] if f"{name}/bias" in self.weights else y

    def layer_norm(self, name, x):
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
        return x * self.weights[f"{name}/scale"] + self.weights[f"{name}/bias"]

    def remember(self, x, h):
        """A gated recurrent unit: r and z from x and h, n from x and r h, then (1 - z) n + z h."""
        (xr, xz, xn), (hr, hz, hn) = (
            np.split(self.dense(f"core/cell/dense_{i}", v), 3) for i, v in (("i", x), ("h", h))
        )
        z = sigmoid(xz + hz)
        return (1.0 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h
