"""Network defence written a second time, the plain way: names, sets and lists, one episode, no bit masks and no tables.

The tests compare the compiled environment with it step by step. Only the reading of the two random words is shared.
"""

from __future__ import annotations

import math

USERS = [f"User{i}" for i in range(5)]
ENTERPRISE = [f"Enterprise{i}" for i in range(3)]
OP_HOSTS = [f"Op_Host{i}" for i in range(3)]
HOSTS = ["Defender", *ENTERPRISE, *OP_HOSTS, "Op_Server0", *USERS]
SUBNETS = {
    "user": USERS,
    "enterprise": ["Defender", *ENTERPRISE],
    "operational": [*OP_HOSTS, "Op_Server0"],
}
SUBNET_NAMES = list(SUBNETS)
WINDOWS = {"Enterprise1", "Enterprise2", "User0", "User1", "User2"}
INTERNAL = {22: None, 135: None, 3389: "rdp", 139: "other", 445: "other", 80: "web", 443: "web"}
# port -> what listens there; the exploit that fits gets the account in ACCOUNTS
SERVICES = {
    "Defender": {22: None, 53: None, 68: None},
    "Enterprise1": INTERNAL,
    "Enterprise2": INTERNAL,
    "User0": {22: None, 21: "ftp"},
    "User1": {22: None, 21: "ftp"},
    "User2": {139: "smb", 445: "smb", 135: None, 3389: "rdp"},
    "User3": {80: "web", 443: "web", 3389: "mysql", 25: "mail"},
    "User4": {22: None, 80: "web", 443: "web", 3390: "mysql", 25: "mail"},
}
FITS = {"ftp": "ftp", "mail": "mail", "sql": "mysql", "https": "web", "http": "web", "smb": "smb", "rdp": "rdp"}
PORT_OF = {"ftp": 21, "mail": 25, "sql": 3390, "https": 443, "http": 80, "smb": 139, "rdp": 3389, "ssh": 22}
BY_WEIGHT = list(PORT_OF)  # 7, 6, 5, 4, 3, 2, 1, 0.1
DECOYS = {  # name: (port opened, port that must be free, systems)
    "apache": (80, 80, "any"),
    "femitter": (21, 21, "windows"),
    "haraka": (25, 25, "linux"),
    "smss": (139, 139, "windows"),
    "sshd": (22, 22, "any"),
    "svchost": (3389, 3389, "windows"),
    "tomcat": (443, 443, "any"),
    "vsftpd": (80, 21, "linux"),
}
LEARN = {"Enterprise2": "Op_Server0", "User1": "Enterprise1", "User2": "Enterprise1"}
LEARN |= {"User3": "Enterprise0", "User4": "Enterprise0"}
COST = {"User0": 0, **dict.fromkeys([*ENTERPRISE, "Op_Server0"], 10)}  # tenths; 1 elsewhere
BACK = [0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13]


def services(host):
    return SERVICES.get(host, {22: None})


def is_root(host, exploit):
    """The account of the service that an exploit takes over."""
    return exploit in ("ftp", "mail", "sql", "smb") or (exploit == "rdp" and host in ENTERPRISE)


class Oracle:
    def __init__(self, red, mode, foothold, detection=0.95):
        self.red, self.mode, self.detection = red, mode, detection
        self.sessions = {h: [] for h in HOSTS}  # of "root", "seen", "unseen"
        self.sessions["User0"].append("root")
        self.decoys = {h: [] for h in HOSTS}
        self.files, self.found = set(), {}
        self.running = self.stoppable = True
        self.belief = dict.fromkeys(HOSTS, "No")
        self.activity = dict.fromkeys(HOSTS, "None")
        self.stage, self.target = 0, f"User{foothold + 1}"
        self.known, self.subnets = {"User0"}, {"user"}
        self.scanned, self.swept, self.exploited, self.escalated = set(), set(), set(), set()
        self.last = None

    # --- one step

    def step(self, action, words):
        self.activity = dict.fromkeys(HOSTS, "None")
        self.started = None  # the host of a decoy of this step
        malware, cost = None, 0
        if action >= 2:
            verb, host = divmod(action - 2, 13)
            host = HOSTS[host]
            if verb == 0:
                malware = host if host in self.files else None
            elif verb == 1:
                self.sessions[host] = [s for s in self.sessions[host] if s != "seen"]
                self.belief[host] = "No" if self.belief[host] == "No" else "Unknown"
            elif verb == 10:
                self.restore(host)
                cost = 10
            else:
                self.deploy(host, list(DECOYS)[verb - 2])
        self.red_turn(words)
        if malware:
            self.belief[malware] = "Privileged"
        cost += sum(COST.get(h, 1) for h in HOSTS if "root" in self.sessions[h]) + 100 * (not self.running)
        return -round(cost / 10, 1)

    def restore(self, host):
        self.sessions[host] = ["root"] if host == "User0" else []
        self.decoys[host] = []
        self.files.discard(host)
        self.belief[host] = "No"
        if host == "Op_Server0":
            self.running = True
            self.stoppable = self.mode == "fixed"

    def ports(self, host):
        return set(services(host)) | {DECOYS[d][0] for d in self.decoys[host]}

    def deploy(self, host, decoy):
        _, free, system = DECOYS[decoy]
        fits = system == "any" or (system == "windows") == (host in WINDOWS)
        if fits and free not in self.ports(host):
            self.decoys[host].append(decoy)
            self.started = host

    # --- Red

    def reachable(self, subnet):
        return subnet != "operational" or any(self.sessions[h] for h in ENTERPRISE)

    def red_turn(self, words):
        chance, pick, detect = (words[0] >> 8) / 2**24, words[1] >> 16, (words[1] & 0xFFFF) / 2**16
        kind, target = self.b_line() if self.red == "b_line" else self.meander(pick)
        subnet = target if kind == "sweep" else next(s for s, hosts in SUBNETS.items() if target in hosts)
        success = False
        if kind == "sweep" and self.reachable(subnet):
            self.known |= set(SUBNETS[subnet])
            success = True
        elif kind == "scan":
            if self.reachable(subnet):
                self.found[target] = self.ports(target)
                self.notice(target, sorted(self.ports(target)))
            success = True
        elif kind == "exploit" and self.reachable(subnet):
            success = self.exploit(target, chance, detect)
        elif kind == "escalate" and self.sessions[target]:
            if "root" not in self.sessions[target]:
                self.files.add(target)
            self.sessions[target] = ["root"]
            self.known |= {LEARN[target]} if target in LEARN else set()
            self.subnets.add(subnet)
            success = True
        elif kind == "impact" and "root" in self.sessions["Op_Server0"]:
            self.running = self.running and not self.stoppable
            success = True
        self.last = (kind, target, success)
        if self.red == "b_line":
            self.stage = min(self.stage + 1, 14) if success else BACK[self.stage]
            if kind == "scan" and target not in self.found:
                self.stage = 1
        else:
            self.remember(kind, target, success)

    def exploit(self, host, chance, detect):
        found = self.found.get(host, set())
        options = [x for x in BY_WEIGHT if PORT_OF[x] in found and (x != "sql" or found & {80, 443})]
        if not options:
            return False
        rest = options[1:]
        if chance < 0.75 or not rest:
            choice = options[0]
        else:
            choice = rest[min(math.floor((chance - 0.75) * 4 * len(rest)), len(rest) - 1)]
        port = PORT_OF[choice]
        if port not in self.ports(host):
            return False
        if choice == "ssh":
            self.notice(host, [22] * 10)
            if 22 in services(host) and host != "Defender":
                self.sessions[host].append("unseen")
                return True
            return False
        if port not in services(host):  # a decoy
            self.notice(host, [port, port])
            return False
        if services(host)[port] != FITS[choice]:
            return False
        self.files.add(host)
        seen = detect < self.detection
        self.notice(host, [port, "callback"] if seen else [port])
        self.sessions[host].append("root" if is_root(host, choice) else "seen" if seen else "unseen")
        return True

    def b_line(self):
        next_host = LEARN[self.target]
        script = [("sweep", "user")] + [(k, self.target) for k in ("scan", "exploit", "escalate")]
        script += [(k, next_host) for k in ("scan", "exploit", "escalate")] + [("sweep", "enterprise")]
        script += [(k, "Enterprise2") for k in ("scan", "exploit", "escalate")]
        script += [(k, "Op_Server0") for k in ("scan", "exploit", "escalate", "impact")]
        return script[self.stage]

    def meander(self, pick):
        def one_of(names, order):
            names = [n for n in order if n in names]
            return names[(pick * len(names)) >> 16] if names else None

        if "Op_Server0" in self.escalated:
            return "impact", "Op_Server0"
        for kind, names, order in (
            ("sweep", self.subnets - self.swept, SUBNET_NAMES),
            ("scan", self.known - self.scanned, HOSTS),
            ("escalate", (self.exploited | {"User0"}) - self.escalated, HOSTS),
        ):
            if names:
                return kind, one_of(names, order)
        return "exploit", one_of(self.known - self.exploited, HOSTS)

    def remember(self, kind, target, success):
        {"sweep": self.swept, "scan": self.scanned, "exploit": self.exploited, "escalate": self.escalated}.get(
            kind, set()
        ).add(target)
        if success or kind in ("sweep", "scan"):
            return
        if kind == "exploit":
            self.exploited.discard(target)
            lost = self.escalated & {*OP_HOSTS, "Op_Server0"} or self.escalated & set(ENTERPRISE)
        else:
            lost = {target}
        self.exploited -= lost
        self.escalated -= lost

    # --- what Blue sees

    def notice(self, host, connections):
        """Blue's table reads the connections of a step by their number and their ports; a decoy that it started itself
        is one more entry, without a port."""
        entries, ports = len(connections) + (self.started == host), len(set(connections))
        if entries >= 3 and ports >= 3:
            self.activity[host] = "Scan"
        elif "callback" in connections or (entries >= 3 and ports == 1):
            self.activity[host], self.belief[host] = "Exploit", "User"
        elif self.started != host:
            self.activity[host] = "Scan"

    def observation(self):
        activity = {"None": (0, 0), "Scan": (1, 0), "Exploit": (1, 1)}
        belief = {"No": (0, 0), "Unknown": (1, 0), "User": (0, 1), "Privileged": (1, 1)}
        return [b for h in HOSTS for b in (*activity[self.activity[h]], *belief[self.belief[h]])]
