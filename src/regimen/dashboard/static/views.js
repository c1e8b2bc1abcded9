// Pictures of what happens in a domain, moved through time by a slider. Their files are described in docs/dashboard.md.

import { h, number, colour, fade, surface, ticks, COLOURS } from "/util.js";
import { Chart } from "/chart.js";

const hue = (i) => colour("c" + (i % COLOURS));
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** A view on the page: `draw` draws it as it is now; `toggle` plays it. */
export class Picture {
  constructor(view, run, say) {
    this.view = view;
    this.say = say;
    this.at = 0;
    this.episode = 0;
    this.kind = KINDS[view.kind];
    this.state = h("p", { class: "state", role: "status" });
    const title = h("b", {}, view.title);
    if (view.kind === "image") {
      const img = h("img", { src: `/api/runs/${run}/files/${view.id}`, alt: view.alt || view.title });
      this.element = h("figure", { class: "card view" }, title, h("div", {}, img), ...(view.note ? [h("p", { class: "state" }, view.note)] : []));
      return;
    }
    if (view.kind === "series") {
      this.chart = new Chart({ title: view.title, own: true, note: [view.ylabel, view.xlabel && `over ${view.xlabel}`].filter(Boolean).join(" ") }, { say });
      this.element = this.chart.element;
      this.element.classList.add("view");
      return;
    }
    this.canvas = h("canvas", { role: "img", "aria-label": view.title });
    this.stage = h("div", { class: "stage" }, this.canvas);
    this.slider = h("input", { type: "range", min: 0, value: 0, step: 1, "aria-label": "Time" });
    this.clock = h("output", {});
    this.button = h("button", { onclick: () => this.toggle() }, "Play");
    this.slider.oninput = () => {
      this.pause();
      this.move(Number(this.slider.value));
    };
    const episodes = view.episodes ?? [];
    const choose = episodes.length > 1 && h("select", { "aria-label": "Episode" }, ...episodes.map((e, i) => h("option", { value: i }, e.title || `episode ${i}`)));
    if (choose) choose.onchange = () => {
      this.episode = Number(choose.value);
      this.bounds = null;
      this.rewind();
    };
    this.legend = h("ul", { class: "legend" });
    this.player = h("div", { class: "player" }, this.button, this.slider, this.clock);
    this.element = h("figure", { class: "card view" }, h("div", { class: "tools" }, title, choose), this.legend, this.stage, this.player, this.state);
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      const text = this.kind.under?.(this, event.clientX - box.left, event.clientY - box.top);
      if (text) this.state.textContent = text;
    });
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.stage);
    this.rewind();
  }

  get frames() {
    return this.kind.frames(this);
  }

  rewind() {
    const last = Math.max(0, this.frames - 1);
    this.slider.max = String(last);
    this.player.hidden = last === 0;
    this.move(this.kind.first?.(this) ?? 0);
  }

  /** Go on where an older version of this picture was; one at its end stays at the end. */
  resume(older) {
    if (!this.slider || !older.slider) return;
    if (older.episode < (this.view.episodes?.length ?? 0)) {
      this.episode = older.episode;
      this.slider.max = String(Math.max(0, this.frames - 1));
    }
    this.move(older.at > 0 && older.at === older.frames - 1 ? this.frames - 1 : older.at);
  }

  move(to) {
    this.at = Math.min(Math.max(to, 0), this.frames - 1);
    this.slider.value = String(this.at);
    this.draw();
    this.slider.setAttribute("aria-valuetext", this.clock.textContent);
  }

  toggle() {
    if (this.timer) return this.pause();
    if (!this.slider || this.frames < 2) return;
    if (this.at >= this.frames - 1) this.at = -1;
    this.button.textContent = "Pause";
    const pause = Math.min(still.matches ? 600 : 400, Math.max(40, 12000 / this.frames));
    this.timer = setInterval(() => {
      this.move(this.at + 1);
      if (this.at >= this.frames - 1) this.pause();
    }, pause);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    if (this.button) this.button.textContent = "Play";
  }

  close() {
    this.pause();
    this.sizes?.disconnect();
    this.chart?.close();
  }

  draw() {
    if (this.chart) {
      const lines = this.view.lines.map((line, i) => ({ label: line.name, colour: hue(i), dots: line.x.length < 60, x: line.x, y: line.y, band: line.low && line.high ? [line.low, line.high] : undefined }));
      return this.chart.show(lines);
    }
    if (!this.canvas || !this.stage.clientWidth || !this.frames) return;
    if (this.kind.height) {
      this.stage.classList.add("tall");
      this.canvas.style.height = `${this.kind.height(this)}px`;
    }
    const [c, width, height] = surface(this.canvas);
    this.kind.draw(this, c, width, height);
    this.canvas.dataset.at = this.at;
  }

  tell(clock, text, bad = false) {
    this.clock.textContent = clock;
    this.state.textContent = text;
    this.state.classList.toggle("bad", bad);
  }

  marks(entries) {
    const key = JSON.stringify(entries);
    if (key === this.marked) return;
    this.marked = key;
    this.legend.replaceChildren(...entries.map(([name, fill, sign]) => {
      const dot = h("span", {}, sign ?? "●");
      dot.style.color = fill;
      return h("li", {}, dot, h("span", {}, name));
    }));
  }
}

/** A plane in the canvas with equal scales, y upwards: functions from its units to pixels. */
function plane([left, bottom, right, top], width, height, margin = 26) {
  const size = Math.min((width - 2 * margin) / Math.max(right - left, 1e-9), (height - 2 * margin) / Math.max(top - bottom, 1e-9));
  const x0 = width / 2 - (size * (left + right)) / 2, y0 = height / 2 + (size * (bottom + top)) / 2;
  return { x: (v) => x0 + v * size, y: (v) => y0 - v * size, size, left: -x0 / size, right: (width - x0) / size, bottom: (y0 - height) / size, top: y0 / size };
}

function box(points, least = 1) {
  let [left, bottom, right, top] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [x, y] of points) {
    [left, right, bottom, top] = [Math.min(left, x), Math.max(right, x), Math.min(bottom, y), Math.max(top, y)];
  }
  if (!Number.isFinite(left)) return [0, 0, 1, 1];
  const pad = Math.max(0, least - (right - left)) / 2, rise = Math.max(0, least - (top - bottom)) / 2;
  return [left - pad, bottom - rise, right + pad, top + rise];
}

function line(c, points, stroke, width = 1, dashes = []) {
  c.beginPath();
  points.forEach(([x, y], i) => (i ? c.lineTo(x, y) : c.moveTo(x, y)));
  c.strokeStyle = stroke;
  c.lineWidth = width;
  c.setLineDash(dashes);
  c.stroke();
  c.setLineDash([]);
}

function disc(c, x, y, radius, fill, stroke, width = 1.5, half = 4) {
  c.beginPath();
  c.arc(x, y, radius, -half, half); // half a turn of pi / 2 is the right half
  if (fill) {
    c.fillStyle = fill;
    c.fill();
  }
  if (stroke) {
    c.strokeStyle = stroke;
    c.lineWidth = width;
    c.stroke();
  }
}

/** Thin diagonals in a square: there is no value here, which is not the lowest one. */
function hatch(c, x, y, size) {
  c.save();
  c.beginPath();
  c.rect(x, y, size, size);
  c.clip();
  const gap = Math.max(5, size / 6);
  for (let d = gap; d < 2 * size; d += gap) line(c, [[x + d, y], [x + d - size, y + size]], fade(colour("dim"), 0.45));
  c.restore();
}

function label(c, text, x, y, fill = colour("ink"), align = "left") {
  c.textAlign = align;
  c.textBaseline = "middle";
  c.lineWidth = 3;
  c.strokeStyle = colour("card");
  c.strokeText(text, x, y);
  c.fillStyle = fill;
  c.fillText(text, x, y);
}

// --- movers with circles of separation ------------------------------------------------------------------------------

const tracks = {
  frames: (p) => p.view.episodes[p.episode]?.time.length ?? 0,
  draw(p, c, width, height) {
    const { separation, unit } = p.view, episode = p.view.episodes[p.episode], t = p.at;
    p.bounds ??= box(episode.agents.flatMap((a) => [...a.x.map((x, i) => [x, a.y[i]]).filter(([x, y]) => x !== null && y !== null), ...(a.goal ? [a.goal] : [])]), separation ?? 1);
    const f = plane(p.bounds, width, height, 34);
    c.font = "11px system-ui, sans-serif";
    for (const v of ticks(f.left, f.right, width / 110)) {
      line(c, [[f.x(v), 0], [f.x(v), height]], colour("grid"));
      if (f.x(v) > 30 && f.x(v) < width - 30) label(c, number(v), f.x(v) + 3, height - 8, colour("dim"));
    }
    for (const v of ticks(f.bottom, f.top, width / 110)) {
      line(c, [[0, f.y(v)], [width, f.y(v)]], colour("grid"));
      if (f.y(v) > 16 && f.y(v) < height - 20) label(c, `${number(v)} ${unit}`, 4, f.y(v) - 8, colour("dim"));
    }
    const here = episode.agents.map((a) => (a.x[t] === null || a.y[t] === null ? null : [a.x[t], a.y[t]]));
    const lost = new Set();
    let closest = null;
    for (let i = 0; i < here.length; i++) for (let j = i + 1; j < here.length; j++) {
      if (!here[i] || !here[j]) continue;
      const apart = Math.hypot(here[i][0] - here[j][0], here[i][1] - here[j][1]);
      if (!closest || apart < closest[0]) closest = [apart, i, j];
      if (separation && apart < separation) {
        lost.add(i).add(j);
        line(c, [here[i], here[j]].map(([x, y]) => [f.x(x), f.y(y)]), colour("bad"), 2);
      }
    }
    episode.agents.forEach((a, i) => {
      const points = a.x.map((x, k) => (x === null || a.y[k] === null ? null : [f.x(x), f.y(a.y[k])]));
      line(c, points.slice(t).filter(Boolean), fade(hue(i), 0.35), 1.2, [3, 4]);
      line(c, points.slice(0, t + 1).filter(Boolean), hue(i), 2.2);
      if (a.goal) {
        const [x, y] = [f.x(a.goal[0]), f.y(a.goal[1])];
        c.beginPath();
        c.moveTo(x, y - 6); c.lineTo(x + 6, y); c.lineTo(x, y + 6); c.lineTo(x - 6, y);
        c.closePath();
        c.strokeStyle = hue(i);
        c.lineWidth = 2;
        c.stroke();
      }
    });
    c.font = "12px system-ui, sans-serif";
    episode.agents.forEach((a, i) => {
      if (!here[i]) return;
      const [x, y] = [f.x(here[i][0]), f.y(here[i][1])], bad = lost.has(i) || a.alert?.[t];
      if (separation) disc(c, x, y, (separation / 2) * f.size, fade(bad ? colour("bad") : hue(i), 0.12), bad ? colour("bad") : fade(hue(i), 0.8), bad ? 2.4 : 1.2);
      const k = a.x[t + 1] !== null && a.x[t + 1] !== undefined ? [t, t + 1] : [t - 1, t];
      const known = k[0] >= 0 && a.x[k[0]] !== null && a.x[k[0]] !== undefined;
      const angle = known ? Math.atan2(-(a.y[k[1]] - a.y[k[0]]), a.x[k[1]] - a.x[k[0]]) : -Math.PI / 2;
      c.save();
      c.translate(x, y);
      c.rotate(angle);
      c.beginPath();
      c.moveTo(10, 0); c.lineTo(-7, 6); c.lineTo(-4, 0); c.lineTo(-7, -6);
      c.closePath();
      c.fillStyle = hue(i);
      c.strokeStyle = colour("card");
      c.lineWidth = 1.5;
      c.stroke();
      c.fill();
      c.restore();
      label(c, a.name, x + 12, y + (i % 2 ? 12 : -12)); // neighbours above and below
    });
    p.marks([...episode.agents.slice(0, 16).map((a, i) => [a.name, hue(i)]), ...(separation ? [[`circles touch at ${number(separation)} ${unit}`, colour("dim"), "◯"]] : []), ...(episode.agents.some((a) => a.goal) ? [["waypoint", colour("dim"), "◇"]] : []), ["still to fly", colour("dim"), "┄"]]);
    const flying = here.filter(Boolean).length;
    const near = closest ? `closest ${episode.agents[closest[1]].name} and ${episode.agents[closest[2]].name}: ${closest[0].toFixed(2)} ${unit}${lost.size ? ", separation lost" : ""}` : "";
    p.tell(`${number(episode.time[t])} s`, [`${flying} of ${here.length} under way`, near].filter(Boolean).join("; "), lost.size > 0);
  },
};

// --- a map of cells with a heat map ---------------------------------------------------------------------------------

const STOPS = 5;
function heat(share) {
  const at = Math.min(Math.max(share, 0), 1) * (STOPS - 1), i = Math.min(Math.floor(at), STOPS - 2), mix = at - i;
  const parts = (k) => colour("h" + k).match(/\d+(\.\d+)?/g).map(Number);
  const [a, b] = [parts(i), parts(i + 1)];
  return [0, 1, 2].map((k) => Math.round(a[k] + mix * (b[k] - a[k])));
}
const css = ([r, g, b]) => `rgb(${r}, ${g}, ${b})`;
const readable = ([r, g, b]) => (0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#111" : "#fff");

const grid = {
  frames: (p) => p.view.frames.length,
  shape(p, width, height) {
    const rows = p.view.rows.length, columns = p.view.rows[0]?.length ?? 1;
    const size = Math.min((width - 78) / columns, (height - 8) / Math.max(rows, 1));
    return { rows, columns, size, x: (width - 70 - size * columns) / 2, y: (height - size * rows) / 2 };
  },
  draw(p, c, width, height) {
    const { rows, columns, size, x, y } = this.shape(p, width, height), frame = p.view.frames[p.at];
    p.scale ??= p.view.frames.flatMap((f) => f.values ?? []).flat().reduce(([a, b], v) => (v === null ? [a, b] : [Math.min(a, v), Math.max(b, v)]), [Infinity, -Infinity]);
    const [low, high] = p.scale, some = Number.isFinite(low) && frame.values;
    const share = (v) => (high > low ? (v - low) / (high - low) : 0.5);
    c.font = `${Math.max(9, Math.min(13, size * 0.3))}px system-ui, sans-serif`;
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
      const sign = p.view.rows[i][j], v = frame.values?.[i]?.[j] ?? null, wall = sign === "#";
      const fill = wall ? null : v === null ? null : heat(share(v));
      c.fillStyle = wall ? colour("wall") : fill ? css(fill) : colour("raised");
      c.fillRect(x + j * size, y + i * size, size - 1, size - 1);
      if (some && !wall && !fill) hatch(c, x + j * size, y + i * size, size - 1);
      const text = fill && size > 38 ? number(Number(v.toPrecision(3))) : wall || " .".includes(sign) ? "" : sign;
      if (!text) continue;
      c.fillStyle = fill ? readable(fill) : colour("dim");
      c.textAlign = "center";
      c.textBaseline = "middle";
      c.fillText(text, x + (j + 0.5) * size, y + (i + (size > 38 && fill ? 0.82 : 0.5)) * size);
    }
    for (const [i, j, dx, dy] of frame.arrows) {
      const [a, b] = [x + (j + 0.5) * size, y + (i + 0.5) * size], angle = Math.atan2(dy, dx), long = Math.hypot(dx, dy) * size * 0.36;
      const end = [a + Math.cos(angle) * long, b + Math.sin(angle) * long];
      line(c, [[a, b], end], colour("c1"), 2);
      line(c, [-2.6, 2.6].map((turn) => [end[0] + Math.cos(angle + turn) * size * 0.1, end[1] + Math.sin(angle + turn) * size * 0.1]).toSpliced(1, 0, end), colour("c1"), 2);
    }
    frame.agents.forEach((agent, i) => {
      const [a, b] = [x + (agent.column + 0.5) * size, y + (agent.row + 0.5) * size];
      disc(c, a, b, size * 0.27, hue(i + 1), colour("card"), 2);
      c.fillStyle = colour("card");
      c.textAlign = "center";
      c.textBaseline = "middle";
      c.font = `600 ${Math.max(9, size * 0.26)}px system-ui, sans-serif`;
      c.fillText(agent.name.slice(0, 1).toUpperCase(), a, b + 1);
    });
    if (some) this.bar(p, c, width, height, low, high);
    const gaps = some && p.view.rows.some((row, i) => [...row].some((sign, j) => sign !== "#" && (frame.values[i]?.[j] ?? null) === null));
    p.marks([...frame.agents.map((agent, i) => [agent.name, hue(i + 1)]), ...(p.view.rows.some((row) => row.includes("#")) ? [["wall", colour("wall"), "■"]] : []), ...(gaps ? [["no value", colour("dim"), "▨"]] : []), ...(frame.arrows.length ? [["policy", colour("c1"), "→"]] : [])]);
    p.tell(`${p.at + 1} / ${p.view.frames.length}`, frame.title);
  },
  bar(p, c, width, height, low, high) {
    const top = 18, bottom = height - 10;
    for (let v = top; v < bottom; v++) {
      c.fillStyle = css(heat((bottom - v) / (bottom - top)));
      c.fillRect(width - 60, v, 12, 1.5);
    }
    c.font = "12px system-ui, sans-serif";
    label(c, number(high), width - 44, top + 6);
    label(c, number(low), width - 44, bottom - 6);
    label(c, p.view.unit, width - 60, 7, colour("dim"));
  },
  under(p, px, py) {
    const { rows, columns, size, x, y } = this.shape(p, p.canvas.clientWidth, p.canvas.clientHeight);
    const [i, j] = [Math.floor((py - y) / size), Math.floor((px - x) / size)];
    const v = p.view.frames[p.at].values?.[i]?.[j];
    return i >= 0 && j >= 0 && i < rows && j < columns ? `row ${i + 1}, column ${j + 1}: ${v === null || v === undefined ? "no value" : `${number(v)} ${p.view.unit}`}` : null;
  },
};

// --- nodes and edges over time --------------------------------------------------------------------------------------

const SHADES = ["c2", "c4", "c1", "bad", "c6", "c3", "c0", "c7"]; // from the harmless to the worst
const shade = (i) => colour(SHADES[i % SHADES.length]);

const network = {
  frames: (p) => p.view.frames.length,
  draw(p, c, width, height) {
    const frame = p.view.frames[p.at], nodes = frame.nodes ?? p.view.nodes, edges = frame.edges ?? p.view.edges;
    p.bounds ??= p.view.bounds ?? box([p.view.nodes, ...p.view.frames.map((f) => f.nodes ?? [])].flat().map((n) => [n.x, n.y]), 1e-6);
    const f = plane(p.bounds, width, height, p.view.bounds ? 12 : 44), named = nodes.length <= 60;
    if (p.view.bounds) {
      const [left, bottom, right, top] = p.view.bounds;
      c.strokeStyle = colour("line");
      c.strokeRect(f.x(left), f.y(top), (right - left) * f.size, (top - bottom) * f.size);
    }
    const radius = nodes.length > 120 ? 3 : nodes.length > 40 ? 5 : nodes.length > 20 ? 9 : 12;
    for (const [i, j] of edges) {
      if (nodes[i] && nodes[j]) line(c, [nodes[i], nodes[j]].map((n) => [f.x(n.x), f.y(n.y)]), colour("line"), 1.4);
    }
    const counts = p.view.states.map(() => 0);
    nodes.forEach((n, i) => {
      const state = frame.state[i] ?? null, worst = p.view.states.length > 2 && state === p.view.states.length - 1;
      if (state !== null && state in counts) counts[state]++;
      if (worst) disc(c, f.x(n.x), f.y(n.y), radius + 4.5, null, shade(state), 2);
      disc(c, f.x(n.x), f.y(n.y), radius, state === null ? colour("c7") : shade(state), colour("card"), 1.5);
      const believed = frame.believed?.[i] ?? null;
      if (believed !== null) {
        disc(c, f.x(n.x), f.y(n.y), radius - 0.7, shade(believed), null, 0, Math.PI / 2);
        line(c, [[f.x(n.x), f.y(n.y) - radius], [f.x(n.x), f.y(n.y) + radius]], colour("card"), 1.5);
      }
      if (named && n.name) label(c, n.name, f.x(n.x), f.y(n.y) + radius + 11, colour("ink"), "center");
    });
    const halves = frame.believed ? [["left half: true, right half: what is believed", colour("ink"), "◐"]] : [];
    p.marks([...p.view.states.map((name, i) => [`${name} ${counts[i]}`, shade(i)]), ...halves]);
    p.tell(`${p.at + 1} / ${p.view.frames.length}`, [frame.title, frame.note].filter(Boolean).join("; "));
  },
};

// --- what is believed of candidates ---------------------------------------------------------------------------------

const ROW = 22, SHOWN = 40;
const posterior = {
  frames: (p) => p.view.frames.length,
  first: (p) => p.view.frames.length - 1,
  height: (p) => 40 + ROW * Math.min(SHOWN, Math.max(1, ...p.view.frames.map((f) => f.candidates.length))),
  draw(p, c, width, height) {
    const frame = p.view.frames[p.at], all = [...frame.candidates].sort((a, b) => b.mean - a.mean), shown = all.slice(0, SHOWN);
    p.scale ??= p.view.frames.flatMap((f) => f.candidates).reduce(([a, b], v) => [Math.min(a, v.low, v.mean, ...(v.observed ?? [])), Math.max(b, v.high, v.mean, ...(v.observed ?? []))], [Infinity, -Infinity]);
    const left = Math.min(width * 0.4, 16 + Math.max(40, ...shown.map((v) => c.measureText(v.name).width))), [low, high] = p.scale;
    const x = (v) => left + ((v - low) / (high - low || 1)) * (width - left - 20);
    let end = -Infinity; // of the last label: one that would touch it is left out
    for (const v of ticks(low, high, (width - left) / 80)) {
      line(c, [[x(v), 0], [x(v), height - 24]], colour("grid"));
      const half = c.measureText(number(v)).width / 2;
      if (x(v) - half < end + 8 || x(v) + half > width) continue;
      end = x(v) + half;
      label(c, number(v), x(v), height - 12, colour("dim"), "center");
    }
    shown.forEach((v, i) => {
      const y = ROW * (i + 0.5) + 2, tint = v.chosen ? colour("c1") : colour("c0");
      let name = v.name;
      while (name.length > 3 && c.measureText(name).width > left - 14) name = name.slice(0, -2) + "…";
      label(c, name, left - 10, y, v.chosen ? tint : colour("ink"), "right");
      line(c, [[x(v.low), y], [x(v.high), y]], fade(tint, 0.55), 5);
      for (const seen of v.observed ?? []) line(c, [[x(seen), y - 5], [x(seen), y + 5]], colour("ink"), 1.5);
      disc(c, x(v.mean), y, 4.5, tint, colour("card"));
    });
    const next = frame.candidates.find((v) => v.chosen);
    p.marks([["mean and interval", colour("c0")], ["highlighted", colour("c1")], ["observed", colour("ink")]]);
    p.tell(`${p.at + 1} / ${p.view.frames.length}`, [frame.title, `${p.view.label}; best ${all[0]?.name ?? "none"} (${number(all[0]?.mean)})`, next && `highlighted ${next.name}`, all.length > SHOWN && `${SHOWN} of ${all.length} shown`].filter(Boolean).join("; "));
  },
};

const KINDS = { tracks, grid, network, posterior, series: {}, image: {} };
