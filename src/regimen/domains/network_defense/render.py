"""Pictures of the network."""

import jax
import numpy as np

from regimen.domains.network_defense import network as net
from regimen.domains.network_defense.env import NetworkDefense, NetworkState
from regimen.domains.network_defense.red import KINDS, SWEEP
from regimen.domains.network_defense.workflow import all_workflows
from regimen.envs.drawing import AMBER, BLUE, GREEN, INK, PALE, RED, Canvas, Color
from regimen.types import Array

WIDTH, HEIGHT = 640, 400  # pixels are the units of the plane, y upwards
WHITE, PANEL, GREY, VIOLET = (255, 255, 255), (240, 240, 235), (140, 146, 156), (150, 110, 190)
COLUMN = {net.USER_NET: 108, net.ENTERPRISE_NET: 320, net.OPERATIONAL_NET: 532}
TOP, ROW = 344, 58
TRUE = (GREEN, AMBER, RED)  # no session, user, root
BELIEF = {0: GREEN, 1: VIOLET, 2: AMBER, 3: RED}  # No, Unknown, User, Privileged: unsure + 2 believed

# Glyphs of 3 x 5 pixels: a character and its rows from the top, as octal digits.
GLYPHS = (
    "A25755B65656C34443D65556E74647F74644G34553H55755I72227J11152K55655L44447M57755N65555O25552P65644Q25563R65655"
    "S34216T72222U55557V55552W55775X55255Y55222Z71247075557126227261247361216455711574616634757771222875757975716"
    "-00700:02020>42124.00002"
)
FONT = {GLYPHS[i]: GLYPHS[i + 1 : i + 6] for i in range(0, len(GLYPHS), 6)}


def place(host: int) -> tuple[float, float]:
    """Centre of a host's card: one column for each subnet."""
    subnet = int(net.SUBNET_OF[host])
    order = [h for h in range(net.N) if net.SUBNET_OF[h] == subnet]
    return COLUMN[subnet], TOP - ROW * order.index(host)


def draw(env: NetworkDefense, state: NetworkState) -> np.ndarray:
    """One card for each host, subnets as columns. The left half of a disc is the true state (green: no session, amber:
    user, red: root), the right half what Blue believes (violet: Unknown). Bars below it are decoys, marks to its right
    this step's alerts (hollow: scan, full: exploit). Blue's last action frames a card in blue, Red's in red, dashed
    where it failed; what they were is written below."""
    s = jax.device_get(state)
    canvas = Canvas(WIDTH, (0.0, WIDTH, 0.0, HEIGHT))
    for subnet, x in COLUMN.items():
        canvas.rectangle((x - 98, 60), (x + 98, HEIGHT - 8), PANEL)
        text(canvas, net.SUBNETS[subnet], (x - 88, HEIGHT - 22), GREY)
    way_in = (int(s.root) | int(s.visible) | int(s.hidden)) & net.ENTERPRISE_SESSIONS
    for left, right, is_open in ((206, 222, True), (418, 434, bool(way_in))):  # Red's way from subnet to subnet
        canvas.line((left, 226), (right, 226), RED if is_open else PALE, 3.0)
    for host in range(net.N):
        card(canvas, s, host)
    frames(canvas, s)
    legend(canvas)
    caption(canvas, env, s)
    canvas.bar(float(s.time) / env.max_episode_steps, INK)
    return canvas.image()


def card(canvas: Canvas, s: NetworkState, host: int) -> None:
    x, y = place(host)
    level = 2 * has(s.root, host) or has(s.visible, host) | has(s.hidden, host)
    belief = has(s.unsure, host) + 2 * has(s.believed, host)
    spot = canvas.part((x - 92, y - 25), (x + 92, y + 25))
    spot.rectangle((x - 90, y - 22), (x + 90, y + 22), WHITE)
    left, right = canvas.part((x - 86, y - 22), (x - 66, y + 22)), canvas.part((x - 66, y - 22), (x - 46, y + 22))
    left.disc((x - 66, y), 15, TRUE[level])
    right.disc((x - 66, y), 15, BELIEF[belief])
    spot.line((x - 66, y - 16), (x - 66, y + 16), WHITE, 2.0)
    text(spot, net.HOSTS[host].replace("_", " "), (x - 42, y + 2), INK)
    for k in range(int(s.decoys[host]).bit_count()):
        spot.rectangle((x - 42 + 9 * k, y - 14), (x - 36 + 9 * k, y - 6), BLUE)
    if has(s.scans, host):
        spot.ring((x + 74, y + 4), 6, RED, 2.0)
    if has(s.exploits, host):
        spot.disc((x + 74, y + 4), 7, RED)
    if host == net.OP_SERVER and not s.service:
        text(spot, "down", (x + 48, y - 16), RED)


def legend(canvas: Canvas) -> None:
    """Draw what the colours mean, in the places of the fifth hosts that two subnets do not have."""
    x, y = COLUMN[net.ENTERPRISE_NET] - 84, TOP - 4 * ROW
    for k, (words, color) in enumerate((("clean", GREEN), ("user", AMBER), ("root", RED), ("unknown", VIOLET))):
        dot = (x + 100 * (k % 2), y + 8 - 22 * (k // 2))
        canvas.part((dot[0] - 8, dot[1] - 8), (dot[0] + 8, dot[1] + 8)).disc(dot, 6, color)
        text(canvas, words, (dot[0] + 14, dot[1] - 5), GREY)
    x = COLUMN[net.OPERATIONAL_NET] - 84
    text(canvas, "left half: true", (x, y + 4), GREY)
    text(canvas, "right half: believed", (x, y - 18), GREY)


def frames(canvas: Canvas, s: NetworkState) -> None:
    if s.blue_action >= 2:
        frame(canvas, place((int(s.blue_action) - 2) % net.N), 22.0, BLUE, True)
    if s.red_kind > SWEEP:
        frame(canvas, place(int(s.red_target)), 25.0, RED, bool(s.red_success))


def frame(canvas: Canvas, at: tuple[float, float], half: float, color: Color, solid: bool) -> None:
    (x, y), wide = at, half + 68
    spot = canvas.part((x - wide - 3, y - half - 3), (x + wide + 3, y + half + 3))
    corners = [(x - wide, y - half), (x + wide, y - half), (x + wide, y + half), (x - wide, y + half)]
    for start, end in zip(corners, corners[1:] + corners[:1]):
        start, end = np.array(start), np.array(end)
        pieces = 1 if solid else int(np.hypot(*(end - start)) // 12)
        for k in range(pieces):
            a, b = (start + (end - start) * (k + share) / pieces for share in (0.0, 1.0 if solid else 0.5))
            spot.line(a, b, color, 2.0)


def caption(canvas: Canvas, env: NetworkDefense, s: NetworkState) -> None:
    text(canvas, f"step {int(s.time)}", (12, 34), INK)
    blue = "-" if s.blue_action < 0 else net.action_name(int(s.blue_action))
    text(canvas, f"blue: {blue}", (86, 34), BLUE)
    if s.red_kind >= 0:
        target = net.SUBNETS[int(s.red_target)] if s.red_kind == SWEEP else net.HOSTS[int(s.red_target)]
        failed = "" if s.red_success else " failed"
        text(canvas, f"red: {KINDS[int(s.red_kind)]} {target}{failed}", (374, 34), RED)
    if env.workflow != "none":
        order = all_workflows()[int(s.workflow)]
        text(canvas, "order: " + " > ".join(u.replace("_", " ") for u in order.order), (86, 14), GREY)


def has(hosts: Array, host: int) -> int:
    return (int(hosts) >> host) & 1


def text(canvas: Canvas, words: str, at: tuple[float, float], color: Color) -> None:
    """Small capitals whose lower left corner is `at`, 3 x 5 squares of two pixels each."""
    rows = np.zeros((5, 4 * len(words)), bool)
    for i, letter in enumerate(words.upper()):
        for y, digit in enumerate(FONT.get(letter, "00000")):
            rows[y, 4 * i : 4 * i + 3] = [(int(digit) >> bit) & 1 for bit in (2, 1, 0)]
    pixels = np.kron(rows, np.ones((2, 2), bool))
    left = int(np.searchsorted(canvas.x[0], at[0]))
    top = int(np.searchsorted(-canvas.y[:, 0], -at[1])) - pixels.shape[0]
    part = canvas.pixels[top : top + pixels.shape[0], left : left + pixels.shape[1]]
    part[pixels[: part.shape[0], : part.shape[1]]] = color
