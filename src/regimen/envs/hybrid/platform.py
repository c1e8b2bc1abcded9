"""Platform (Masson, Ranchod and Konidaris 2016): run, hop and leap over two gaps, past an enemy on each platform.

Rules and constants are those of the authors' code as ported to Gym by gym-platform (Platform-v0).
"""

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import lax

from regimen.envs.drawing import BLUE, GREEN, INK, RED, Canvas
from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, Record, TimeStep, pytree_dataclass

RUN, HOP, LEAP = 0, 1, 2
DT = 0.05  # seconds per substep
RUN_SUBSTEPS = 20  # a run takes a second; a hop and a leap last until the player stands again
MAX_SUBSTEPS = 160  # of one action, of which a hop takes about 145; in weaker gravity the next action falls on
WIDTH, HEIGHT = 20.0, 30.0  # of the player and of an enemy
GROUND = 40.0  # top of the platforms
LIFT = (0.0, 35.0, 25.0)  # upward speed at take-off, by choice
MAX_PUSH = 30.0  # most that one substep adds to the horizontal speed
MAX_SPEED, MAX_GROUND_SPEED, MAX_FALL = 100.0, 70.0, 200.0
DECAY = 0.99  # of the horizontal speed per substep


@pytree_dataclass
class PlatformState(Record):
    """The lower left corner of the player, and the enemies; only the enemy of the platform in reach moves."""

    x: Array
    y: Array
    dx: Array
    dy: Array
    enemy_x: Array  # [2]
    enemy_dx: Array  # [2]


def careful(env, key, state, obs):
    """Run gently; hop over an enemy that comes close, and over a gap as soon as the speed carries."""
    left, _ = env.platforms()
    here = jnp.sum(state.x > left[1:] - WIDTH)
    enemy = jnp.minimum(here, 1)
    ahead = state.enemy_x[enemy] - state.x
    met = (ahead > -WIDTH) & (ahead < jnp.where(state.enemy_dx[enemy] < 0, 170.0, 80.0))
    clear = (ahead < -WIDTH) | (ahead > 90.0)
    beyond = jnp.append(left, jnp.inf)[here + 1] - WIDTH  # where the next platform can be stood on
    carries = state.x + 3.76 * jnp.minimum(state.dx + MAX_PUSH, MAX_GROUND_SPEED) > beyond + 15.0
    over_gap, last = carries & clear, here == 2
    return {
        "choice": jnp.where(~last & (over_gap | met), HOP, RUN).astype(jnp.int32),
        "run": jnp.where(last, 30.0, 5.4)[None],
        "hop": jnp.where(over_gap, 720.0, 150.0)[None],
        "leap": jnp.zeros(1),
    }


def stands(ground: tuple[Array, Array], state: PlatformState) -> Array:
    left, width = ground
    return (state.y == GROUND) & jnp.any((state.x >= left - WIDTH) & (state.x <= left + width))


@native_env
class Platform(NativeEnv):
    """A step is a whole action: a run of a second, or a jump until the player lands.

    The reward is the distance covered as a share of the course, so that an episode returns between 0 and 1. It ends at
    the goal (`success`), on touching an enemy and on falling. Observed are nine numbers in [0, 1]: position and speed
    of the player and of the enemy in reach; width of this platform and of the next, the gap between them, where this
    platform begins, and the difference in height, which is 0 with the published constants and here always.
    A run's parameter is the speed added per substep, a jump's the distance aimed for. Not published, so decided here:
    the length of an episode (MP-DQN trains with at most 250 actions).
    """

    max_episode_steps: int = 250
    """Actions before an episode is cut short."""
    width_1: float = 250.0
    """Width of the first platform."""
    width_2: float = 275.0
    """Width of the second platform."""
    width_3: float = 50.0
    """Width of the last platform; the goal is its right edge."""
    gap_1: float = 225.0
    """Gap between the first two platforms."""
    gap_2: float = 235.0
    """Gap between the last two platforms."""
    gravity: float = 9.8
    """Downward acceleration."""
    enemy_speed: float = 30.0
    """The most an enemy moves in a second."""
    enemy_noise: float = 0.5
    """Deviation of an enemy's acceleration."""
    player_noise: float = 0.5
    """Deviation of what slows the player while it runs and flies."""
    jump_noise: float = 1.0
    """Deviation of what a jump loses of either speed."""

    metric_reductions = {"success": "last"}  # noqa: RUF012
    action_conditions = {"run": ("choice", (0,)), "hop": ("choice", (1,)), "leap": ("choice", (2,))}  # noqa: RUF012
    baselines = {"heuristic": careful}  # noqa: RUF012
    render_fps = 3
    legend = "Blue: the agent. Red: enemies. The flag: the end of the course."

    @property
    def observation_space(self):
        return spaces.Box(0.0, 1.0, (9,), np.float32)

    @property
    def action_space(self):
        return spaces.Dict(
            choice=spaces.Discrete(3),
            run=spaces.Box(0.0, 30.0, (1,), np.float32),
            hop=spaces.Box(0.0, 720.0, (1,), np.float32),
            leap=spaces.Box(0.0, 430.0, (1,), np.float32),
        )

    def platforms(self) -> tuple[Array, Array]:
        """Left edges and widths, [3] each."""
        second = self.width_1 + self.gap_1
        left = jnp.stack([0.0, second, second + self.width_2 + self.gap_2])
        return left, jnp.stack([self.width_1, self.width_2, self.width_3])

    def reset(self, key: Array):
        left, width = self.platforms()
        zero = jnp.zeros(())
        enemy_x, enemy_dx = (left + width - WIDTH)[:2], jnp.full(2, -self.enemy_speed)
        state = PlatformState(zero, zero + GROUND, zero, zero, enemy_x, enemy_dx)
        return state, self.observe(state)

    def step(self, key: Array, state: PlatformState, action: dict[str, Array]):
        ground, choice = self.platforms(), action["choice"]
        amount = jnp.stack([action["run"][0], action["hop"][0], action["leap"][0]])[choice]
        jump_key, key = jax.random.split(key)
        deficit = self.jump_noise * jnp.abs(jax.random.normal(jump_key, (2,)))
        noise = jax.random.normal(key, (MAX_SUBSTEPS, 2))  # at once: drawn in the loop it costs twice as much

        def going(carry):
            return carry[3]

        def body(carry):
            t, state, _, _ = carry
            state, over = self.substep(ground, state, choice, amount, deficit, noise[t])
            t = t + 1
            unfinished = jnp.where(choice == RUN, t < RUN_SUBSTEPS, ~stands(ground, state)) & (t < MAX_SUBSTEPS)
            return t, state, over, unfinished & ~over

        start = (jnp.int32(0), state, jnp.bool_(False), jnp.bool_(True))
        _, after, over, _ = lax.while_loop(going, body, start)
        course = ground[0][2] + ground[1][2]
        reached = (after.x >= course).astype(jnp.float32)
        reward = (after.x - state.x) / course
        return after, TimeStep(self.observe(after), reward, terminated=over, metrics={"success": reached})

    def substep(self, ground: tuple, state: PlatformState, choice: Array, amount: Array, deficit: Array, noise: Array):
        """A twentieth of a second: (state, whether the episode ended)."""
        left, width = ground
        standing, lift = stands(ground, state), jnp.array(LIFT)[choice]
        # A jump aims at the speed that would cover the distance, but no push adds more than MAX_PUSH.
        aim = jnp.clip(amount / (2 * lift / self.gravity + 1) - state.dx, -MAX_PUSH / DT, MAX_FALL - lift) - deficit[0]
        push = jnp.where(standing, jnp.where(choice == RUN, amount, aim), 0.0)
        rise = jnp.where(standing, jnp.where(choice == RUN, 0.0, lift - deficit[1]), -self.gravity * DT)
        dx = state.dx + jnp.clip(push, -MAX_PUSH, MAX_PUSH) - jnp.abs(self.player_noise * DT * noise[0])
        dx = jnp.clip(dx, 0.0, jnp.where(standing, MAX_GROUND_SPEED, MAX_SPEED))
        dy = jnp.clip(state.dy + rise, -MAX_FALL, MAX_FALL)
        x, y = jnp.clip(state.x + DT * dx, 0.0, left[2] + width[2]), state.y + DT * dy

        right = (left + width - WIDTH)[:2]
        near = jnp.arange(2) == (state.x > left[1])
        at_end = (state.enemy_x <= left[:2]) | (state.enemy_x >= right)
        enemy_dx = jnp.where(at_end, -state.enemy_dx, state.enemy_dx) + self.enemy_noise * DT * noise[1]
        enemy_dx = jnp.where(near, jnp.clip(enemy_dx, -self.enemy_speed, self.enemy_speed), state.enemy_dx)
        enemy_x = jnp.where(near, jnp.clip(state.enemy_x + DT * enemy_dx, left[:2], right), state.enemy_x)

        # Overlapping a platform, the player is put on top of it, or beside it where that is the shorter way.
        inside = (x > left - WIDTH) & (x < left + width) & (y < GROUND)
        beside = jnp.where(x < left, left - WIDTH, jnp.where(x > left + width - WIDTH, left + width, x))
        aside = inside & (beside != x) & (jnp.abs(x - beside) < GROUND - y)
        landed = jnp.any(inside & ~aside)
        state = PlatformState(
            x=jnp.where(jnp.any(aside), jnp.sum(jnp.where(aside, beside, 0.0)), x),
            y=jnp.where(landed, GROUND, y),
            dx=jnp.where(jnp.any(inside), 0.0, DECAY * dx),
            dy=jnp.where(landed, 0.0, dy),
            enemy_x=enemy_x,
            enemy_dx=enemy_dx,
        )
        touched = jnp.any(jnp.abs(state.x - enemy_x) < WIDTH) & (state.y < GROUND + HEIGHT)
        return state, (state.y < GROUND) | touched | (state.x >= left[2] + width[2])

    def observe(self, state: PlatformState) -> Array:
        left, width = self.platforms()
        here, enemy = jnp.sum(state.x >= left[1:]), (state.x > left[1]).astype(jnp.int32)
        widths = jnp.append(width, 0.0)
        gaps = jnp.append(left[1:] - left[:-1] - width[:-1], 0.0)
        course = left[2] + width[2]
        features = [
            (state.x + WIDTH) / (course + WIDTH),
            state.dx / MAX_SPEED,
            state.enemy_x[enemy] / course,
            (state.enemy_dx[enemy] + self.enemy_speed) / (2 * self.enemy_speed),
            widths[here] / jnp.max(width),
            widths[here + 1] / jnp.max(width),
            gaps[here] / jnp.max(gaps),
            left[here] / course,
            jnp.zeros(()),
        ]
        return jnp.clip(jnp.stack(features), 0.0, 1.0)

    def render(self, state: PlatformState) -> np.ndarray:
        left, width = (np.asarray(a) for a in self.platforms())
        course = left[2] + width[2]
        canvas = Canvas(640, (-25.0, course + 35.0, 0.0, 160.0))
        for a, w in zip(left, width):
            canvas.rectangle((a, 0.0), (a + w, GROUND), INK)
        canvas.rectangle((course, GROUND), (course + 4.0, GROUND + 60.0), GREEN)  # the flag
        canvas.rectangle((course, GROUND + 40.0), (course + 28.0, GROUND + 60.0), GREEN)
        for x in state.enemy_x:
            canvas.rectangle((x, GROUND), (x + WIDTH, GROUND + HEIGHT), RED)
        canvas.rectangle((state.x, state.y), (state.x + WIDTH, state.y + HEIGHT), BLUE)
        return canvas.image()
