"""Goal (Masson, Ranchod and Konidaris 2016): kick the ball past a keeper; Hard Goal (Li et al. 2022): with ten shots.

Rules and constants are those of the authors' code as ported to Gym by gym-goal (Goal-v0), after the RoboCup simulator.
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import lax

from regimen.envs.drawing import BLUE, GREEN, INK, RED, Canvas
from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, Record, TimeStep, pytree_dataclass

LENGTH, WIDTH = 20.0, 30.0  # of the half of the pitch that is played on; y = 0 is its middle
GOAL, DEPTH = 14.02, 2.44  # width and depth of the goal, which begins at x = LENGTH
BOX_LENGTH, BOX_WIDTH = 5.5, 18.32  # of the area that the keeper starts in
KICKABLE, CATCHABLE = 1.6, 2.0  # distances to the ball
INERTIA = 5.0  # how much less a moving player turns
POWER = 100.0  # the most of a kick
DASH, SAVE, FOLLOW = 10.0, 20.0, 8.0  # power with which the player runs, and the keeper to a shot and to the ball
STILL = 0.1  # speed of the ball at which a kick is over
SUBSTEPS = 600  # of one action; the longest of 20,000 random ones took 298


LOW, HIGH = np.array([0, -WIDTH / 2], np.float32), np.array([2 * LENGTH, WIDTH / 2], np.float32)  # of `kick_to`


class Body:
    """Constants of a player or of the ball."""

    def __init__(self, size: float, rate: float, most: float, noise: float, decay: float):
        self.size, self.rate, self.most, self.noise, self.decay = size, rate, most, noise, decay


PLAYER, BALL = Body(0.9, 0.006, 1.0, 0.1, 0.4), Body(0.4, 0.027, 2.7, 0.05, 0.94)


@pytree_dataclass
class GoalState(Record):
    """Positions and velocities [2]; facing in rad."""

    player: Array
    player_speed: Array
    player_facing: Array
    keeper: Array
    keeper_speed: Array
    keeper_facing: Array
    ball: Array
    ball_speed: Array
    t: Array  # int32, actions so far


def corner(env, key, state, obs):
    """A hard kick, aimed far beyond the corner of the goal that the keeper is further away from."""
    x, y = state.player
    ahead = LENGTH - x
    off = state.keeper[1] - y + (state.keeper[0] - x) / ahead * y  # the keeper, off the line to the goal's centre
    rise = jnp.where(off > 0, -1.0, 1.0) * (GOAL / 2 - 0.9) - y
    room = WIDTH / 2 - jnp.sign(rise) * y
    far = jnp.minimum((2 * LENGTH - x) / ahead, room / jnp.maximum(jnp.abs(rise), 1e-3))
    target = jnp.stack([x + far * ahead, y + far * rise])
    shots = {name: jnp.zeros(1) for name in env.action_space.spaces if name.startswith("shoot")}
    return {"choice": jnp.int32(0), "kick_to": target} | shots


@native_env
class Goal(NativeEnv):
    """A player with the ball at its feet, in one half of a football pitch, against a keeper.

    `kick_to` kicks the ball to a point; `shoot_left` and `shoot_right`, which do the same, shoot at a height of the
    goal line until the ball is in, caught or out. A player who cannot reach the ball runs to it. A goal pays 50 and is
    the `success`; a ball that is caught, out or late pays minus its distance to the goal. Observed are position,
    velocity and facing of player and keeper, and position and velocity of the ball, scaled to about 0 to 1.
    As in gym-goal, the last of `max_episode_steps` actions is not carried out, and a ball that is out below the goal
    has the distance 7.01 - y.
    """

    max_episode_steps: int = 100
    """Actions after which an episode has failed."""
    noise: float = 1.0
    """Share of the published noise of kicks and runs; 0 leaves them exact."""

    metric_reductions: ClassVar = {"success": "last"}
    baselines: ClassVar = {"heuristic": corner}
    shots: ClassVar[tuple[str, ...]] = ("shoot_left", "shoot_right")
    legend = "Blue: the player. Red: the keeper and what it can catch. Dark: the ball. Green: the goal."

    @property
    def observation_space(self):
        return spaces.Box(-np.inf, np.inf, (14,), np.float32)

    @property
    def action_space(self):
        parts: dict[str, spaces.Space] = {"choice": spaces.Discrete(1 + len(self.shots))}
        parts["kick_to"] = spaces.Box(LOW, HIGH, dtype=np.float32)
        for i, name in enumerate(self.shots):
            parts[name] = spaces.Box(*self.span(i), (1,), np.float32)
        return spaces.Dict(parts)

    @property
    def action_conditions(self):  # type: ignore[override]
        return {name: ("choice", (i,)) for i, name in enumerate(("kick_to", *self.shots))}

    def span(self, shot: int) -> tuple[float, float]:
        """The heights of the goal line that a shot may be aimed at."""
        return -GOAL / 2, GOAL / 2

    def reset(self, key: Array):
        player = jnp.stack([0.0, jax.random.uniform(key, minval=-WIDTH / 2, maxval=WIDTH / 2)])
        facing = angle(jnp.array([LENGTH, 0.0]) - player)
        ball = player + (KICKABLE - 1e-5) * unit(facing)  # within reach in float32, too
        keeper = guard(ball)
        still = jnp.zeros(2)
        state = GoalState(player, still, facing, keeper, still, angle(ball - keeper), ball, still, jnp.int32(0))
        return state, observe(state)

    def step(self, key: Array, state: GoalState, action: dict[str, Array]):
        choice = action["choice"]
        target = jnp.clip(action["kick_to"], LOW, HIGH)
        for i, name in enumerate(self.shots):
            height = jnp.clip(action[name][0], *self.span(i))
            target = jnp.where(choice == i + 1, jnp.stack([LENGTH + BALL.size, height]), target)
        late = state.t + 1 >= self.max_episode_steps

        def goes_on(carry):
            count, now = carry
            kicked = (choice > 0) | (norm(now.ball_speed) > STILL) | ~reaches(now)
            return ((count == 0) | (~over(now) & kicked & (count < SUBSTEPS))) & ~late

        def once(carry):
            count, now = carry
            draws = jax.random.uniform(jax.random.fold_in(key, count), (6,), minval=-1.0)
            return count + 1, substep(now, target, self.noise * draws)

        _, after = lax.while_loop(goes_on, once, (jnp.int32(0), state))
        after = after.replace(t=state.t + 1)
        scored, ended = in_net(after.ball), over(after)
        reward = jnp.where(scored, 50.0, jnp.where(ended | late, -away(after.ball), 0.0))
        metrics = {"success": scored.astype(jnp.float32)}
        return after, TimeStep(observe(after), reward, terminated=ended | late, metrics=metrics)

    def render(self, state: GoalState) -> np.ndarray:
        canvas = Canvas(360, (-1.0, LENGTH + DEPTH + 0.6, -WIDTH / 2 - 0.5, WIDTH / 2 + 0.5))
        canvas.rectangle((LENGTH, -GOAL / 2), (LENGTH + DEPTH, GOAL / 2), GREEN, 0.5)
        canvas.line((LENGTH, -WIDTH / 2), (LENGTH, WIDTH / 2), INK, 0.1)
        canvas.ring(state.keeper, CATCHABLE, RED, 0.1)
        for place, facing, color in (
            (state.player, state.player_facing, BLUE),
            (state.keeper, state.keeper_facing, RED),
        ):
            ahead = PLAYER.size * np.array([np.cos(facing), np.sin(facing)])
            canvas.disc(place, PLAYER.size, color).line(place, np.asarray(place) + ahead, INK, 0.2)
        return canvas.disc(state.ball, BALL.size, INK).image()


@native_env
class HardGoal(Goal):
    """Goal with ten shots, each at a tenth of the goal line (HyAR); which one scores depends on the keeper."""

    shots: ClassVar[tuple[str, ...]] = tuple(f"shoot_{i}" for i in range(10))

    def span(self, shot: int) -> tuple[float, float]:
        tenth = GOAL / len(self.shots)
        return -GOAL / 2 + shot * tenth, -GOAL / 2 + (shot + 1) * tenth


# --- the rules -------------------------------------------------------------------------------------------------------


def norm(v: Array) -> Array:
    return jnp.sqrt(v[0] * v[0] + v[1] * v[1])


def unit(angle: Array) -> Array:
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def angle(v: Array) -> Array:
    return jnp.arctan2(v[1], v[0])


def wrap(x: Array) -> Array:
    """An angle between -pi and pi."""
    return x - 2 * math.pi * jnp.round(x / (2 * math.pi))


def guard(ball: Array) -> Array:
    """Where the keeper starts: on the line from the ball to the centre of the goal, at the edge of its area."""
    slope = -ball[1] / (LENGTH - ball[0])
    x = LENGTH - BOX_LENGTH  # no ball starts closer to the goal
    return jnp.stack([x, jnp.clip(slope * (x - LENGTH), -BOX_WIDTH / 2, BOX_WIDTH / 2)])


def reaches(state: GoalState) -> Array:
    """Whether the player can kick the ball."""
    return norm(state.player - state.ball) <= KICKABLE


def in_net(ball: Array) -> Array:
    return (ball[0] >= LENGTH) & (ball[0] <= LENGTH + DEPTH) & (jnp.abs(ball[1]) <= GOAL / 2)


def over(state: GoalState) -> Array:
    """Whether the ball is in the net, out, or caught."""
    inside = (state.ball[0] >= 0) & (state.ball[0] <= LENGTH) & (jnp.abs(state.ball[1]) <= WIDTH / 2)
    return in_net(state.ball) | ~inside | (norm(state.keeper - state.ball) < CATCHABLE)


def away(ball: Array) -> Array:
    """Distance of the ball from the goal, as published."""
    x, y = ball
    beside = jnp.sign(y) * jnp.maximum(jnp.abs(y) - GOAL / 2, 0.0)
    behind = jnp.where(y < -GOAL / 2, GOAL / 2 - y, jnp.abs(beside))
    return jnp.where(x < LENGTH, jnp.hypot(LENGTH - x, beside), behind)


def push(body: Body, speed: Array, power: Array | float, direction: Array, noise: Array) -> Array:
    """The velocity after a push, whose direction and acceleration are uncertain; `noise` [3] is in -1 to 1."""
    direction = (1 + body.noise * noise[0]) * direction
    added = body.rate * power * unit(direction) + body.noise * norm(speed) * noise[1:]
    return jnp.clip(speed + jnp.clip(added, -body.most, body.most), -body.most, body.most)


def substep(state: GoalState, target: Array, noise: Array) -> GoalState:
    """One tick: the player kicks towards the target or goes to the ball, the keeper moves, bodies move and collide."""
    state = chase_or_kick(state, target, noise[:3])
    state = keep(state, noise[3:])
    player, keeper, ball = (p + v for p, v in pairs_of(state))
    player_speed, keeper_speed = PLAYER.decay * state.player_speed, PLAYER.decay * state.keeper_speed
    ball_speed = BALL.decay * state.ball_speed
    (player, player_speed), (keeper, keeper_speed) = collide(
        (player, player_speed), (keeper, keeper_speed), 2 * PLAYER.size
    )
    touch = PLAYER.size + BALL.size
    (player, player_speed), (ball, ball_speed) = collide((player, player_speed), (ball, ball_speed), touch)
    (keeper, keeper_speed), (ball, ball_speed) = collide((keeper, keeper_speed), (ball, ball_speed), touch)
    return state.replace(
        player=player,
        player_speed=player_speed,
        keeper=keeper,
        keeper_speed=keeper_speed,
        ball=ball,
        ball_speed=ball_speed,
    )


def pairs_of(state: GoalState) -> list[tuple[Array, Array]]:
    """(position, velocity) of player, keeper and ball."""
    return [(state.player, state.player_speed), (state.keeper, state.keeper_speed), (state.ball, state.ball_speed)]


def chase_or_kick(state: GoalState, target: Array, noise: Array) -> GoalState:
    """Kick so that the ball would come to rest as far away as the target is; without the ball turn to it, then run."""
    to_ball = angle(state.ball - state.player)
    off = wrap(to_ball - state.player_facing)
    can, faces = reaches(state), jnp.abs(off) < math.pi / 8
    share = 1 - 0.25 * jnp.abs(off) / math.pi - 0.25 * norm(state.ball - state.player) / KICKABLE
    wanted = (1 - BALL.decay) * (target - state.player) - state.ball_speed
    power = jnp.minimum(norm(wanted) / (share * BALL.rate), POWER) * share
    kicked = push(BALL, state.ball_speed, power, angle(wanted), noise)
    dashed = push(PLAYER, state.player_speed, DASH, state.player_facing, noise)
    turned = state.player_facing + off / (1 + INERTIA * norm(state.player_speed))
    return state.replace(
        ball_speed=jnp.where(can, kicked, state.ball_speed),
        player_speed=jnp.where(~can & faces, dashed, state.player_speed),
        player_facing=jnp.where(~can & ~faces, turned, state.player_facing),
    )


def keep(state: GoalState, noise: Array) -> GoalState:
    """The keeper runs to the nearest point of the path of a ball that will reach the goal, else after the ball."""
    end = state.ball + state.ball_speed / (1 - BALL.decay)
    path = end - state.ball
    slope = jnp.where(path[0] == 0, 0.0, path[1] / jnp.where(path[0] == 0, 1.0, path[0]))
    start = state.ball[1] - slope * state.ball[0]
    height = slope * LENGTH + start
    shot = (end[0] > LENGTH) & (jnp.abs(height) <= GOAL / 2 + CATCHABLE) & (slope != 0)
    across = -1 / jnp.where(slope == 0, 1.0, slope)
    x = (state.keeper[1] - across * state.keeper[0] - start) / (slope - across)
    goal = jnp.where(shot, jnp.stack([x, slope * x + start]), end)
    facing = angle(goal - state.keeper)
    speed = push(PLAYER, state.keeper_speed, jnp.where(shot, SAVE, FOLLOW), facing, noise)
    return state.replace(keeper_speed=speed, keeper_facing=facing)


Moving = tuple[Array, Array]  # position and velocity


def collide(a: Moving, b: Moving, apart: float) -> tuple[Moving, Moving]:
    """Two bodies that overlap are moved apart and turn round."""
    gap = norm(a[0] - b[0])
    shift = (apart - gap) / 2 * unit(angle(b[0] - a[0]))
    hit = gap < apart
    first = jnp.where(hit, a[0] - shift, a[0]), jnp.where(hit, -a[1], a[1])
    second = jnp.where(hit, b[0] + shift, b[0]), jnp.where(hit, -b[1], b[1])
    return first, second


SCALE = np.array([LENGTH, WIDTH, 2, 2, 2 * math.pi] * 2 + [LENGTH, WIDTH, 6, 6], np.float32)
SHIFT = np.array([0, WIDTH / 2, 1, 1, math.pi] * 2 + [0, WIDTH / 2, 3, 3], np.float32)


def observe(state: GoalState) -> Array:
    one = [*state.player, *state.player_speed, state.player_facing]
    other = [*state.keeper, *state.keeper_speed, state.keeper_facing]
    values = jnp.stack([*one, *other, *state.ball, *state.ball_speed])
    return ((values + SHIFT) / SCALE).astype(jnp.float32)
