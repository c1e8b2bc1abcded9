"""Network defence: Blue defends 13 hosts with 145 actions against a scripted Red; CAGE challenge 2, scenario 2.

In each step Blue acts, Red acts, the reward is read off the true state, and Blue sees what its monitoring reports. The
rules, where they come from and how they were checked are in docs/network_defense.md.
"""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import lax

from regimen.domains.network_defense import compliance as fixing
from regimen.domains.network_defense import network as net
from regimen.domains.network_defense import policies
from regimen.domains.network_defense import red as reds
from regimen.domains.network_defense.compliance import Fixes
from regimen.domains.network_defense.history import FEATURES, History
from regimen.domains.network_defense.red import Intruder
from regimen.domains.network_defense.workflow import Workflow, all_workflows, classes_for
from regimen.envs.metric import Metric
from regimen.envs.protocol import NativeEnv, native_env
from regimen.errors import ConfigError, nearest
from regimen.types import Array, Record, T, TimeStep, pytree_dataclass

REDS = (*reds.AGENTS, "sleep", "mixed")
MODES = ("faithful", "fixed")
USER0 = 1 << net.USER0
OP_SERVER = 1 << net.OP_SERVER


@pytree_dataclass
class NetworkState(Record):
    """Sets of hosts are integers with a bit for each host."""

    root: Array  # int32, hosts on which Red is root or SYSTEM
    visible: Array  # int32, hosts with a user session whose process Blue has been told of: Remove ends it
    hidden: Array  # int32, hosts with a user session of which Blue knows no process (SSH, or not detected)
    files: Array  # int32, hosts with a dropped file that Analyse finds
    decoys: Array  # [13] int32, set of DECOYS
    ports: Array  # [13] int32, set of PORTS that Red found open at its last scan
    service: Array  # bool, OTService of Op_Server0 runs
    stoppable: Array  # bool, Impact stops it (faithful: no longer after a Restore)
    red: Intruder
    scans: Array  # int32, hosts with scan or exploit activity in the last step
    exploits: Array  # int32, hosts with exploit activity in the last step
    unsure: Array  # int32, first bit of the belief: Unknown 10, Privileged 11
    believed: Array  # int32, second bit of the belief: User 01, Privileged 11
    time: Array  # int32
    workflow: Array  # int32, index of the order
    tally: Fixes
    blue_action: Array  # int32, the last; -1 at the start
    red_kind: Array  # int32, Red's last action; -1 at the start
    red_target: Array  # int32
    red_success: Array  # bool
    history: History | tuple[()] = ()  # where it is observed

    @property
    def sessions(self) -> Array:
        """Hosts on which Red has any session."""
        return self.root | self.visible | self.hidden


@native_env
class NetworkDefense(NativeEnv):
    """Blue against `b_line`, `meander` or either; optionally with a workflow to follow."""

    red: str = "b_line"
    """Who attacks: b_line, meander, sleep (nobody), or mixed (b_line or meander, drawn for every episode)."""
    mode: str = "faithful"
    """faithful: after Op_Server0 was restored its service can never be stopped again, as in the reference; fixed: it
    can."""
    max_episode_steps: int = 100
    """Steps before an episode is cut short; the challenge uses 30, 50 and 100."""
    workflow: str = "none"
    """none, all (an order is drawn for every episode), or one order: critical_first, D,S,E,H,U. Adds 25 observed
    entries."""
    alignment: str = "none"
    """Reward for following the workflow: none, published (telescopes to weight * compliance), or potential."""
    compliance: str = "published"
    """What complies: published looks at the type of the fixed host, repaired at the host itself and leaves User0
    out."""
    min_fixes: int = 1
    """Fewest fixes, useful or not, with which an episode counts when compliance is judged (`counted`)."""
    alignment_weight: float = 30.0
    """Scale of the alignment reward."""
    alignment_gamma: float = 0.99
    """Discount of the potential; it must be the learner's gamma."""
    detection: float = 0.95
    """Probability that the callback of a reverse shell is reported."""
    history: bool = False
    """Also observe what the episode has shown so far: 11 entries per host (alerts before, their age, decoys)."""

    return_targets = (-100.0, -50.0, -25.0)
    gated_metric = "compliance"
    baselines: ClassVar[dict[str, Callable[..., Array]]] = {
        "random": policies.random,
        "sleep": policies.sleep,
        "greedy": policies.greedy,
        "oracle": policies.oracle,
    }
    render_fps = 4
    legend = (
        "Bars below a disc: decoys. Marks beside it: alerts of this step (hollow: scan, full: exploit). Frames: the "
        "last action of Blue and of Red, dashed where it failed."
    )

    def __post_init__(self):
        choices = {"red": REDS, "mode": MODES, "alignment": fixing.ALIGNMENTS, "compliance": fixing.DEFINITIONS}
        for name, options in choices.items():
            value = getattr(self, name)
            if value not in options:
                hint = nearest(str(value), options)
                raise ConfigError(f"env.{name}: '{value}' is not one of {', '.join(options)}{hint}")
        if self.workflow not in ("none", "all"):
            try:
                Workflow.parse(self.workflow)
            except ConfigError as e:
                raise ConfigError(f"env.{e}; or none, or all") from e
        if self.alignment != "none" and self.workflow == "none":
            raise ConfigError(
                f"env.alignment: '{self.alignment}' needs a workflow; set env.workflow (an order, or all)"
            )
        if self.min_fixes < 0:
            raise ConfigError(f"env.min_fixes: {self.min_fixes} is out of range; it must be at least 0")

    @property
    def reward_components(self) -> tuple[str, ...]:  # type: ignore[override]
        costs = ("confidentiality", "availability", "restore", "invalid")
        return costs if self.alignment == "none" else (*costs, "alignment")

    @property
    def metric_reductions(self) -> dict[str, str | Metric]:  # type: ignore[override]
        out: dict[str, str | Metric] = {
            "env_return": "sum",
            "impacts": Metric("sum", "lower", "count"),
            "fixes": "last",
        }
        if self.red == "mixed":
            out["meander"] = "last"
        if self.workflow != "none":
            names = ("compliant_fixes", "fixes_repaired", "counted", "compliance", "workflow")
            out |= dict.fromkeys((*names, *(f"compliance_{d}" for d in fixing.DEFINITIONS)), "last")
        return out

    @property
    def observed(self) -> int:
        """Entries of an observation."""
        return net.N * (4 + FEATURES * self.history) + 25 * (self.workflow != "none")

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (self.observed,), np.float32)

    @property
    def action_space(self) -> spaces.Discrete:
        return spaces.Discrete(net.BLUE_ACTIONS)

    def notes(self) -> list[str]:
        """Which of the 120 orders ask for the same repairs, against this red agent and by both definitions."""
        groups = ", ".join(f"{2 + net.N * i}+host {name}" for i, name in enumerate(net.GROUPS))
        out = [f"blue actions        0 Sleep, 1 Monitor, {groups}"]
        for definition in fixing.DEFINITIONS:
            classes = classes_for(self.red, definition)
            names = ", ".join(f"{c.name} ({len(c.members)})" for c in classes)
            out.append(f"order classes       {definition}, against {self.red}: {len(classes)} of 120 orders: {names}")
        return out

    def reset(self, key: Array) -> tuple[NetworkState, Array]:
        chance = jax.random.bits(key, (2,), jnp.uint32)
        meander = (chance[0] >> 2) & 1 if self.red == "mixed" else self.red == "meander"
        if self.workflow == "all":
            workflow = (chance[1] % len(all_workflows())).astype(jnp.int32)
        else:
            workflow = jnp.int32(0 if self.workflow == "none" else Workflow.parse(self.workflow).index)
        zeros = ("visible", "hidden", "files", "scans", "exploits", "unsure", "believed", "time")
        state = NetworkState(
            **dict.fromkeys(zeros, jnp.zeros((), jnp.int32)),
            **dict.fromkeys(("decoys", "ports"), jnp.zeros(net.N, jnp.int32)),
            **dict.fromkeys(("blue_action", "red_kind", "red_target"), jnp.full((), -1, jnp.int32)),
            root=jnp.int32(USER0),
            service=jnp.bool_(True),
            stoppable=jnp.bool_(True),
            red=reds.start(jnp.asarray(meander, bool), (chance[0] & 3).astype(jnp.int32)),
            workflow=workflow,
            tally=Fixes.zero(),
            red_success=jnp.bool_(False),
            history=History.start() if self.history else (),
        )
        return state, self.observe(state)

    def step(self, key: Array, state: NetworkState, action: Array) -> tuple[NetworkState, TimeStep]:
        action = jnp.asarray(action, jnp.int32)
        valid = (action >= 0) & (action < net.BLUE_ACTIONS)
        action = jnp.where(valid, action, net.SLEEP)
        before = state
        state, files, deployed = self.blue(state, action)
        state = self.red_acts(key, state, deployed)
        # Blue's table: what this step's events say, then what its own Analyse found.
        believed = state.believed | state.exploits | files
        state = state.replace(unsure=(state.unsure & ~state.exploits) | files, believed=believed)
        tally = self.count_fix(before, action)
        state = state.replace(time=state.time + 1, blue_action=action, tally=tally)
        if isinstance(state.history, History):
            state = state.replace(history=state.history.after(state.time, state.scans, state.exploits))
        return state, self.report(before.tally, state, action, valid)

    def blue(self, state: NetworkState, action: Array) -> tuple[NetworkState, Array, Array]:
        """The action's effect, and the sets of hosts on which it found a dropped file and started a decoy."""
        group, host = lax.div(action - 2, net.N), lax.rem(action - 2, net.N)
        targeted = action >= 2
        at = jnp.where(targeted, jnp.left_shift(1, host), 0)
        analyse, remove, restore = (jnp.where(group == g, at, 0) for g in (net.ANALYSE, net.REMOVE, net.RESTORE))
        is_decoy = targeted & (group >= net.FIRST_DECOY) & (group < net.RESTORE)
        index = jnp.clip(group - net.FIRST_DECOY, 0, len(net.DECOYS) - 1)
        busy = jnp.asarray(net.DECOY_PORTS)[state.decoys[host]] & jnp.asarray(net.DECOY_NEEDS)[index]
        accepted = is_decoy & ((jnp.asarray(net.DECOY_HOSTS)[index] & at) > 0) & (busy == 0)
        here = np.arange(net.N) == host
        decoys = state.decoys | jnp.where(here & accepted, jnp.left_shift(1, index), 0)
        decoys = jnp.where(here & (restore > 0), 0, decoys)
        rebuilt = (restore & OP_SERVER) > 0
        state = state.replace(
            root=state.root & ~(restore & ~USER0),
            visible=state.visible & ~(restore | remove),
            hidden=state.hidden & ~restore,
            files=state.files & ~restore,
            decoys=decoys,
            service=state.service | rebuilt,
            stoppable=state.stoppable & ~rebuilt if self.mode == "faithful" else state.stoppable,
            # Remove: whatever was believed becomes Unknown, and No stays No.
            unsure=(state.unsure | (state.believed & remove)) & ~restore,
            believed=state.believed & ~(remove | restore),
        )
        return state, analyse & state.files, jnp.where(accepted, at, 0)

    def red_acts(self, key: Array, state: NetworkState, deployed: Array) -> NetworkState:
        """Red's turn, and what monitoring makes of it. A decoy that Blue started on the same host in this step
        (`deployed`) is one more process in Blue's table: it turns two connections to a decoy into an exploit, and hides
        a scan of fewer than three ports and an exploit whose callback is not reported."""
        words = jax.random.bits(key, (2,), jnp.uint32)
        chance = (words[0] >> 8).astype(jnp.float32) * 2.0**-24
        pick, detect = (words[1] >> 16).astype(jnp.int32), (words[1] & 0xFFFF).astype(jnp.float32) * 2.0**-16
        red = state.red
        kind, target = self.either(red, reds.asleep(), lambda: reds.b_line(red), lambda: reds.meander(red, pick))
        at = jnp.where(kind == reds.SWEEP, 0, jnp.left_shift(1, target))
        subnet = jnp.where(kind == reds.SWEEP, target, jnp.asarray(net.SUBNET_OF)[target])
        routed = (subnet != net.OPERATIONAL_NET) | ((state.sessions & net.ENTERPRISE_SESSIONS) > 0)
        host = jnp.minimum(target, net.N - 1)
        here = np.arange(net.N) == host
        open_now = jnp.asarray(net.OPEN)[host] | jnp.asarray(net.DECOY_PORTS)[state.decoys[host]]

        scan = kind == reds.SCAN  # where there is no way to the host it finds nothing, and counts as a success
        informed = scan & routed
        ports = jnp.where(here & informed, open_now, state.ports)

        # Exploit: the preferred one three times out of four, otherwise any other that the stored ports suggest.
        stored = state.ports[host]
        among = jnp.asarray(net.OPTIONS)[stored]
        number = lax.population_count(among)
        other = 1 + ((chance - net.PREFER) / (1 - net.PREFER) * (number - 1)).astype(jnp.int32)
        choice = jnp.where(chance < net.PREFER, 0, jnp.minimum(other, number - 1))
        exploit = jnp.asarray(net.NTH)[among, jnp.maximum(choice, 0)]
        attempt = (kind == reds.EXPLOIT) & routed & (number > 0)
        connected = attempt & ((open_now & jnp.asarray(net.MEETS)[exploit, host]) > 0)
        level = jnp.where(connected, jnp.asarray(net.LEVEL)[exploit, host], 0)
        ssh = exploit == net.SSH
        shell = (level > 0) & ~ssh
        reported = shell & (detect < self.detection)
        fresh = (deployed & at) > 0
        noisy = connected & (ssh | reported | (fresh & (level == 0)))
        noticed = noisy | (connected & ~fresh) | (informed & (~fresh | (lax.population_count(open_now) >= 3)))

        escalate = (kind == reds.ESCALATE) & ((state.sessions & at) > 0)
        impact = (kind == reds.IMPACT) & ((state.root & OP_SERVER) > 0)
        sweep = (kind == reds.SWEEP) & routed
        success = sweep | scan | (level > 0) | escalate | impact

        def where(condition: Array) -> Array:
            return jnp.where(condition, at, 0)

        nothing = scan & ~informed & (stored == 0)  # every host has open ports
        red = self.either(
            red,
            red,
            lambda: reds.b_line_after(state.red, success, nothing),
            lambda: reds.meander_after(state.red, kind, target, success),
        )
        return state.replace(
            root=state.root | where((level == net.ROOT) | escalate),
            visible=(state.visible | where((level == net.USER) & reported)) & ~where(escalate),
            hidden=(state.hidden | where((level == net.USER) & ~reported)) & ~where(escalate),
            files=state.files | where(shell | (escalate & ((state.root & at) == 0))),
            ports=ports,
            service=state.service & ~(impact & state.stoppable),
            red=red,
            scans=where(noticed),
            exploits=where(noisy),
            red_kind=kind,
            red_target=target,
            red_success=success,
        )

    def either(self, red: Intruder, asleep: T, straight: Callable[[], T], winding: Callable[[], T]) -> T:
        """What comes of `b_line` or of `meander`, whichever of the two Red is; what is there where it sleeps."""
        if self.red == "sleep":
            return asleep
        if self.red == "mixed":
            return jax.tree.map(lambda w, s: jnp.where(red.meander, w, s), winding(), straight())
        return straight() if self.red == "b_line" else winding()

    def count_fix(self, state: NetworkState, action: Array) -> Fixes:
        """Count the action if it is a fix, judged by the state before it."""
        group, host = lax.div(action - 2, net.N), lax.rem(jnp.maximum(action - 2, 0), net.N)
        is_fix = (group == net.REMOVE) | (group == net.RESTORE)
        if self.workflow == "none":
            return state.tally.replace(fixes=state.tally.fixes + is_fix)
        return fixing.count(state.tally, state.workflow, state.sessions, host, is_fix)

    def report(self, before: Fixes, state: NetworkState, action: Array, valid: Array) -> TimeStep:
        tally = state.tally
        tenths = {
            "confidentiality": sum(int(c) * ((state.root >> h) & 1) for h, c in enumerate(net.CONFIDENTIALITY) if c),
            "availability": jnp.where(state.service, 0, net.AVAILABILITY),
            "restore": jnp.where(action >= 2 + net.N * net.RESTORE, net.RESTORE_COST, 0),
            "invalid": jnp.where(valid, 0, net.INVALID_COST),
        }
        reward = [jnp.asarray(-x, jnp.float32) / 10 for x in tenths.values()]
        metrics: dict[str, Array] = {
            "env_return": jnp.asarray(-sum(tenths.values()), jnp.float32) / 10,
            "impacts": (state.red_kind == reds.IMPACT) & state.red_success,
            "fixes": tally.fixes,
        }
        if self.red == "mixed":
            metrics["meander"] = state.red.meander
        if self.workflow != "none":
            metrics |= {
                "compliant_fixes": getattr(tally, self.compliance),
                "fixes_repaired": tally.useful,
                "counted": tally.fixes >= self.min_fixes,
                "compliance": tally.share(self.compliance),
                "workflow": state.workflow,
                **{f"compliance_{d}": tally.share(d) for d in fixing.DEFINITIONS},
            }
        if self.alignment != "none":
            last = state.time >= self.max_episode_steps
            scale = (jnp.asarray(self.alignment_weight), jnp.asarray(self.alignment_gamma))
            reward.append(fixing.alignment(self.alignment, self.compliance, *scale, before, tally, last))
        return TimeStep(self.observe(state), jnp.stack(reward), jnp.bool_(False), metrics=metrics)

    def observe(self, state: NetworkState) -> Array:
        """Four bits for each host (activity 00 none, 10 scan, 11 exploit; belief 00 No, 10 Unknown, 01 User, 11
        Privileged), then the history, then the workflow."""
        sets = jnp.stack([state.scans, state.exploits, state.unsure, state.believed])
        table = ((sets[None, :] >> np.arange(net.N)[:, None]) & 1).astype(jnp.float32).reshape(-1)
        parts = [table]
        if isinstance(state.history, History):
            parts.append(state.history.observe(state.time, state.decoys))
        if self.workflow != "none":
            parts.append(jnp.asarray(fixing.ONE_HOT)[state.workflow])
        return jnp.concatenate(parts)

    def gated_args(self, task: str) -> dict[str, str]:
        """The arguments with which a policy is paid for repairing in the order `task`."""
        return {"workflow": task, "alignment": "published"}

    def replay_columns(self, state: NetworkState) -> dict[str, np.ndarray]:
        """What a replay's table has that Blue does not see: the level of Red's session on each host, 0 to 2."""
        sessions, root = int(state.visible) | int(state.hidden), int(state.root)
        user, full = (np.array([hosts >> host & 1 for host in range(net.N)]) for hosts in (sessions, root))
        return {"level": np.where(full > 0, 2, user)}

    def render(self, state: NetworkState) -> np.ndarray:
        """[H, W, 3] uint8."""
        from regimen.domains.network_defense.render import draw

        return draw(self, state)


@native_env
class NetworkDefenseWorkflow(NetworkDefense):
    """NetworkDefense with an order drawn for every episode, paid for following it: one policy learns all orders."""

    return_targets = ()  # the reward for alignment shifts them

    red: str = "mixed"
    """Who attacks: b_line, meander, or mixed (one of them drawn for every episode)."""
    workflow: str = "all"
    """none, all (an order is drawn for every episode), or one order: critical_first, D,S,E,H,U. Adds 25 observed
    entries."""
    alignment: str = "published"
    """Reward for following the workflow: none, published (telescopes to weight * compliance), or potential."""
