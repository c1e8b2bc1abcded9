"""The network as tables: hosts, ports, services, decoys, and what each exploit does to each host.

A set of hosts, ports, exploits, decoys or unit types is an integer with one bit for each. The facts are in
network.yaml; everything here is numpy, made of them once. The rules that use it are in env.py and red.py.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import yaml

from regimen.domains.network_defense.workflow import TYPES

FACTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
HOSTS, EXPLOITS, DECOYS = (tuple(FACTS[name]) for name in ("hosts", "exploits", "decoys"))
HOST_FACTS, EXPLOIT_FACTS, DECOY_FACTS = (FACTS[name].values() for name in ("hosts", "exploits", "decoys"))
N = len(HOSTS)
OP_SERVER, USER0 = HOSTS.index("Op_Server0"), HOSTS.index("User0")
SUBNETS = ("user", "enterprise", "operational")
USER_NET, ENTERPRISE_NET, OPERATIONAL_NET = range(3)

SLEEP = 0  # 1 is Monitor
ANALYSE, REMOVE, RESTORE = 0, 1, 10  # groups of 13 blue actions; group g, host h is action 2 + 13 g + h
FIRST_DECOY = 2  # groups 2 to 9
GROUPS = ("Analyse", "Remove", *DECOYS, "Restore")
BLUE_ACTIONS = 2 + N * len(GROUPS)

AVAILABILITY = 100  # tenths of a reward, while the service of Op_Server0 is down
RESTORE_COST = 10
INVALID_COST = 1
PREFER = 0.75  # probability of the preferred exploit where there are several
USER, ROOT = 1, 2


def action_name(action: int, on: str = "") -> str:
    """`Monitor`, `Restore User1`; with `on`, `Decoy Apache on User1`."""
    if action < 2:
        return ("Sleep", "Monitor")[action]
    group, host = divmod(action - 2, N)
    name = f"Decoy {GROUPS[group]}{on}" if FIRST_DECOY <= group < RESTORE else GROUPS[group]
    return f"{name} {HOSTS[host]}"


def bits(indices: Iterable[int]) -> int:
    return sum(1 << int(i) for i in set(indices))


def ports(*numbers: int) -> int:
    return bits(map(FACTS["ports"].index, numbers))


def column(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), np.int32)


TYPE_OF = column(TYPES.index(host["type"]) for host in HOST_FACTS)  # [N] index into TYPES
SUBNET_OF = column(SUBNETS.index(host["subnet"]) for host in HOST_FACTS)  # [N]
CONFIDENTIALITY = column(host["cost"] for host in HOST_FACTS)  # [N] of a root session, in each step
OPEN = column(ports(*host["ports"]) for host in HOST_FACTS)  # [N] ports that are always open
KNOWS = column(bits([HOSTS.index(host["knows"])] if "knows" in host else []) for host in HOST_FACTS)  # [N]
TYPE_HOSTS = column(bits(np.flatnonzero(t == TYPE_OF)) for t in range(len(TYPES)))  # [5]
SUBNET_HOSTS = column(bits(np.flatnonzero(s == SUBNET_OF)) for s in range(3))  # [3]
ENTERPRISE_SESSIONS = int(TYPE_HOSTS[TYPES.index("enterprise")])  # any of them opens the way to the operational subnet
ALL = bits(range(N))


# Exploits are in order of falling weight: the lowest bit of a set of them is the preferred one.
SSH = EXPLOITS.index("SSH")
EXPLOIT_PORT = column(ports(exploit["port"]) for exploit in EXPLOIT_FACTS)  # [8]
# [8, N] session won against the real service; 0: it fails, or there is none
LEVEL = np.stack(
    [
        column(USER * (host in exploit.get("user", ())) + ROOT * (host in exploit.get("root", ())) for host in HOSTS)
        for exploit in EXPLOIT_FACTS
    ]
)
# [8, N] the port on which an exploit meets a service of its kind, real or decoy; none where one of another kind has it.
MEETS = np.where((OPEN & EXPLOIT_PORT[:, None] > 0) & (LEVEL == 0), 0, EXPLOIT_PORT[:, None])
MEETS[SSH] = EXPLOIT_PORT[SSH]  # the Defender's is of its kind, too, and has strong accounts only


def options(open_ports: int) -> int:
    """Exploits that Red considers for stored ports; SQL injection needs a web server beside the database."""
    suited = bits(x for x, port in enumerate(EXPLOIT_PORT) if open_ports & port)
    return suited if open_ports & ports(80, 443) else suited & ~(1 << EXPLOITS.index("SQL injection"))


OPTIONS = column(options(p) for p in range(1 << len(FACTS["ports"])))  # [2^12]


DECOY_NEEDS = column(ports(decoy["needs"]) for decoy in DECOY_FACTS)  # [8] must be free
DECOY_HOSTS = column(
    bits(
        h
        for h, host in enumerate(HOST_FACTS)
        if decoy.get("os", host["os"]) == host["os"] and decoy["needs"] not in host["ports"]
    )
    for decoy in DECOY_FACTS
)  # [8] hosts that accept it on a fresh network
MEMBERS = [[i for i in range(8) if (s >> i) & 1] for s in range(256)]  # of each set of up to 8
OPENS = [ports(decoy["opens"]) for decoy in DECOY_FACTS]
DECOY_PORTS = column(np.bitwise_or.reduce([0, *(OPENS[i] for i in members)]) for members in MEMBERS)  # [2^8]
NTH = np.array([members + [0] * (8 - len(members)) for members in MEMBERS], np.int32)  # [2^8, 8] the k-th member
