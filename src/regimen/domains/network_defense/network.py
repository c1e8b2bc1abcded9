"""The network as tables: hosts, ports, services, decoys, and what each exploit does to each host.

A set of hosts, ports, exploits, decoys or unit types is an integer with one bit for each. Everything here is numpy and
made once; the rules that use it are in env.py and red.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

HOSTS = (
    "Defender",
    *(f"Enterprise{i}" for i in range(3)),
    *(f"Op_Host{i}" for i in range(3)),
    "Op_Server0",
    *(f"User{i}" for i in range(5)),
)
N = len(HOSTS)
DEFENDER, ENTERPRISE0, ENTERPRISE1, ENTERPRISE2 = range(4)
OP_SERVER, USER0 = HOSTS.index("Op_Server0"), HOSTS.index("User0")

TYPES = ("defender", "enterprise", "op_server", "op_host", "user")
TYPE_OF = np.array([0, 1, 1, 1, 3, 3, 3, 2, 4, 4, 4, 4, 4], np.int32)  # [N] index into TYPES

SUBNETS = ("user", "enterprise", "operational")
USER_NET, ENTERPRISE_NET, OPERATIONAL_NET = range(3)
SUBNET_OF = np.array([1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0, 0], np.int32)  # [N]

ANALYSE, REMOVE, RESTORE = 0, 1, 10  # groups of 13 blue actions; group g, host h is action 2 + 13 g + h
FIRST_DECOY = 2  # groups 2 to 9
SLEEP, MONITOR = 0, 1
DECOYS = ("Apache", "Femitter", "HarakaSMPT", "Smss", "SSHD", "Svchost", "Tomcat", "Vsftpd")
BLUE_ACTIONS = 2 + N * 11


def bits(indices: Iterable[int]) -> int:
    return sum(1 << int(i) for i in set(indices))


ALL = bits(range(N))
TYPE_HOSTS = np.array([bits(np.flatnonzero(t == TYPE_OF)) for t in range(5)], np.int32)  # [5]
SUBNET_HOSTS = np.array([bits(np.flatnonzero(s == SUBNET_OF)) for s in range(3)], np.int32)  # [3]
ENTERPRISE_SESSIONS = int(TYPE_HOSTS[TYPES.index("enterprise")])  # any of them opens the way to the operational subnet
WINDOWS = bits((2, 3, 8, 9, 10))
LINUX = ALL & ~WINDOWS

# What escalating on a host tells Red: addresses found on it.
KNOWS = np.zeros(N, np.int32)
KNOWS[ENTERPRISE2] = 1 << OP_SERVER
KNOWS[[9, 10]] = 1 << ENTERPRISE1
KNOWS[[11, 12]] = 1 << ENTERPRISE0

# Tenths of a reward that a root session on a host costs in each step.
CONFIDENTIALITY = np.array([1, 10, 10, 10, 1, 1, 1, 10, 0, 1, 1, 1, 1], np.int32)
AVAILABILITY = 100  # the service of Op_Server0 is down
RESTORE_COST = 10
INVALID_COST = 1

PORTS = (21, 22, 25, 80, 135, 139, 443, 445, 3389, 3390, 53, 68)
PORT = {number: 1 << i for i, number in enumerate(PORTS)}


def ports(*numbers: int) -> int:
    return sum(PORT[n] for n in numbers)


OPEN = np.array(
    [
        ports(22, 53, 68),
        ports(22),
        *[ports(22, 135, 3389, 139, 445, 80, 443)] * 2,
        *[ports(22)] * 3,
        ports(22),
        *[ports(22, 21)] * 2,
        ports(139, 445, 135, 3389),
        ports(80, 443, 3389, 25),
        ports(22, 80, 443, 3390, 25),
    ],
    np.int32,
)  # [N] ports that are always open

# Exploits by falling weight, so that the lowest bit of a set of them is the preferred one.
EXPLOITS = ("FTP traversal", "Haraka", "SQL injection", "HTTPS RFI", "HTTP RFI", "EternalBlue", "BlueKeep", "SSH")
SSH = EXPLOITS.index("SSH")
EXPLOIT_PORT = np.array([ports(p) for p in (21, 25, 3390, 443, 80, 139, 3389, 22)], np.int32)  # [8]
PREFER = 0.75  # probability of the preferred exploit where there are several

USER, ROOT = 1, 2
LEVEL = np.zeros((len(EXPLOITS), N), np.int32)  # session won against the real service; 0: it fails, or there is none
LEVEL[0, [8, 9]] = ROOT  # femitter as SYSTEM
LEVEL[1, [11, 12]] = ROOT  # haraka as root
LEVEL[2, 12] = ROOT  # mysql as root
LEVEL[3, [2, 3, 11, 12]] = USER  # tomcat as NetworkService, apache as www-data
LEVEL[4, [2, 3, 11, 12]] = USER
LEVEL[5, 10] = ROOT  # smb as SYSTEM; the service on 139 of Enterprise1 and 2 is of another type
LEVEL[6, [2, 3]] = ROOT  # rdp as SYSTEM
LEVEL[6, 10] = USER  # rdp as NetworkService; on User3 port 3389 is mysql
LEVEL[7, [1, 2, 3, 4, 5, 6, 7, 8, 9, 12]] = USER  # a weak account everywhere but on the Defender

# [8, N] the port on which an exploit meets a service of its kind, real or decoy; none where one of another kind has it.
MEETS = np.where((OPEN & EXPLOIT_PORT[:, None] > 0) & (LEVEL == 0), 0, EXPLOIT_PORT[:, None])
MEETS[SSH] = EXPLOIT_PORT[SSH]  # the Defender's is of its kind, too, and has strong accounts only

DECOY_OPENS = np.array([ports(p) for p in (80, 21, 25, 139, 22, 3389, 443, 80)], np.int32)  # [8]
DECOY_NEEDS = np.array([ports(p) for p in (80, 21, 25, 139, 22, 3389, 443, 21)], np.int32)  # [8] must be free
DECOY_OS = (ALL, WINDOWS, LINUX, WINDOWS, ALL, WINDOWS, ALL, LINUX)
DECOY_HOSTS = np.array(
    [os & bits(h for h in range(N) if not OPEN[h] & need) for os, need in zip(DECOY_OS, DECOY_NEEDS)], np.int32
)  # [8] hosts that accept it on a fresh network


def any_of(values: np.ndarray) -> np.ndarray:
    """The union of `values` [n] over each set of indices [2^n]."""
    out = np.zeros(1 << len(values), values.dtype)
    for i, value in enumerate(values):
        out |= np.where((np.arange(out.size) >> i) & 1, value, 0).astype(values.dtype)
    return out


def options(open_ports: int) -> int:
    """Exploits that Red considers for stored ports; SQL injection needs a web server beside the database."""
    suited = bits(x for x, port in enumerate(EXPLOIT_PORT) if open_ports & port)
    return suited if open_ports & ports(80, 443) else suited & ~(1 << EXPLOITS.index("SQL injection"))


DECOY_PORTS = any_of(DECOY_OPENS)  # [2^8] ports that a host's decoys open
OPTIONS = np.array([options(p) for p in range(1 << len(PORTS))], np.int32)  # [2^12]

# NTH[s, k]: index of the k-th member of a set s of up to 8.
NTH = np.zeros((256, 8), np.int32)
for _s in range(256):
    _members = [i for i in range(8) if (_s >> i) & 1]
    NTH[_s, : len(_members)] = _members
