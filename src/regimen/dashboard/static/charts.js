// Curves on a canvas: lines with bands, stacked areas, smoothing, logarithmic axes, reading values, zooming.

import { h, number, duration, colour, fade, surface, ticks } from "/util.js";

/** What all charts have in common; the page changes it and redraws. `range` is the zoomed part of the axis. */
export const look = { axis: "env_steps", smooth: 0, ylog: false, xlog: false, range: null, cursor: null };

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2]];
export const AXES = { env_steps: "steps", wall_seconds: "wall time", episodes: "episodes", updates: "updates" };
export const dash = (i) => DASHES[i % DASHES.length];
const LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 22;

export const xText = (x) => (look.axis === "wall_seconds" ? duration(x) : number(x));

/** A mean whose memory is a share of the axis, so that it looks the same however many points there are. */
export function smoothed(x, y, share, span) {
  if (!share || y.length < 3 || !(span > 0)) return y;
  const out = new Array(y.length);
  let sum = 0, weight = 0;
  for (let i = 0; i < y.length; i++) {
    const keep = i ? Math.exp(-(x[i] - x[i - 1]) / (share * span)) : 0;
    sum = sum * keep + y[i];
    weight = weight * keep + 1;
    out[i] = sum / weight;
  }
  return out;
}

const extent = (arrays) => {
  let low = Infinity, high = -Infinity;
  for (const array of arrays) for (const v of array) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  return [low, high];
};

/** A scale from values to pixels. Logarithmic where asked; around zero it is linear, so that signs survive. */
function scale(low, high, from, to, log, values) {
  if (!(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)))) {
    const pad = Math.abs(low) * 0.05 || 0.5;
    [low, high] = [low - pad, high + pad];
  }
  if (!log) {
    const at = (v) => from + ((v - low) / (high - low)) * (to - from);
    return { at, back: (p) => low + ((p - from) / (to - from)) * (high - low), ticks: (n) => ticks(low, high, n) };
  }
  const sizes = values.flatMap((a) => Array.from(a, Math.abs)).filter((v) => v > 0).sort((a, b) => a - b);
  const tiny = sizes.length ? sizes[Math.floor(sizes.length * 0.02)] : 1;
  const pure = low > 0;
  const f = pure ? Math.log10 : (v) => Math.sign(v) * Math.log10(1 + Math.abs(v) / tiny);
  const g = pure ? (u) => 10 ** u : (u) => Math.sign(u) * tiny * (10 ** Math.abs(u) - 1);
  const [a, b] = [f(low), f(high)];
  const at = (v) => from + ((f(v) - a) / (b - a)) * (to - from);
  const marks = (n) => {
    const powers = [];
    for (let p = Math.floor(Math.log10(Math.max(tiny, Math.max(-low, high) * 1e-12))); p <= Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)))); p++) powers.push(10 ** p);
    let all = pure ? powers : [...powers.map((v) => -v).reverse(), 0, ...powers];
    all = all.filter((v) => v >= low && v <= high);
    if (all.length < 3 && pure) all = powers.flatMap((v) => [v, 2 * v, 5 * v]).filter((v) => v >= low && v <= high);
    const stride = Math.ceil(all.length / Math.max(2, n));
    return all.filter((_, i) => i % stride === 0);
  };
  return { at, back: (p) => g(a + ((p - from) / (to - from)) * (b - a)), ticks: marks };
}

function nearest(x, wanted) {
  let low = 0, high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] < wanted) low = middle; else high = middle;
  }
  return Math.abs(x[low] - wanted) <= Math.abs(x[high] - wanted) ? low : high;
}

/** One chart. `spec`: title, note, removable. `show(series)` gives it lines:
 *  {label, colour, dash, x, y, raw, low, high, band: [low, high], dots, stack}. */
export class Chart {
  constructor(spec, events) {
    this.spec = spec;
    this.events = events;
    this.series = [];
    this.legend = h("ul", { class: "legend" });
    this.canvas = h("canvas", { tabIndex: 0, role: "img", "aria-label": spec.title });
    this.tip = h("div", { class: "tip", hidden: true });
    this.note = h("span", {}, spec.note ?? "");
    const close = spec.remove && h("button", { class: "plain", "aria-label": `Remove ${spec.title}`, onclick: spec.remove }, "×");
    this.plot = h("div", { class: "plot" }, this.canvas, this.tip);
    this.element = h("figure", { class: "card chart" }, h("figcaption", {}, h("b", {}, spec.title), this.note, close), this.legend, this.plot);
    this.listen();
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.plot);
  }

  close() {
    this.sizes.disconnect();
    this.element.remove();
  }

  /** `legend` replaces the legend, where that is not one entry for each line. */
  show(series, note, legend) {
    this.series = series.filter((s) => s.x.length);
    if (note !== undefined) this.note.textContent = note;
    const entries = this.series.filter((s) => s.label && !s.quiet);
    const named = legend ?? entries;
    const key = JSON.stringify(named.map((s) => [s.label, s.colour, s.dash]));
    if (key !== this.legendKey) {
      this.legendKey = key;
      this.legend.replaceChildren(...named.map((s) => h("li", { title: s.label }, swatch(s), h("span", {}, s.label))));
    }
    const latest = entries.slice(0, 4).map((s) => `${s.label}: ${number(s.y[s.y.length - 1])}`).join(", ");
    this.canvas.setAttribute("aria-label", `${this.spec.title} over ${AXES[look.axis] ?? "x"}; latest ${latest || "none"}`);
    this.canvas.dataset.points = this.series.reduce((sum, s) => sum + (s.n ?? s.x.length), 0);
    this.canvas.dataset.lines = entries.length;
    this.draw();
  }

  /** The series as drawn: smoothed, with the raw line kept beside. */
  drawn(span) {
    return this.series.map((s) => (s.stack || !look.smooth || s.still ? s : { ...s, y: smoothed(s.x, s.y, look.smooth, span), raw: s.raw ?? s.y }));
  }

  draw() {
    if (!this.plot.clientWidth) return;
    const [c, width, height] = surface(this.canvas);
    if (!this.series.length) {
      c.fillStyle = colour("dim");
      c.textAlign = "center";
      c.fillText("no points yet", width / 2, height / 2);
      return;
    }
    let [x0, x1] = look.range && !this.spec.own ? look.range : extent(this.series.map((s) => [s.x[0], s.x[s.x.length - 1]]));
    if (look.xlog && !this.spec.own) x0 = Math.max(x0, Math.min(...this.series.map((s) => s.x.find((v) => v > 0) ?? 1)));
    const lines = this.drawn(x1 - x0);
    const inside = (s, array) => array.filter((_, i) => s.x[i] >= x0 && s.x[i] <= x1);
    const values = lines.flatMap((s) => {
      const shown = s.stack ? [...s.stack] : [s.y, ...(s.band ?? []), ...(s.raw ? [s.raw] : [])];
      return shown.map((array) => inside(s, array));
    });
    let [y0, y1] = extent(values.concat(lines.some((s) => s.stack) ? [[0]] : []));
    if (!Number.isFinite(y0)) [y0, y1] = [0, 1];
    if (!look.ylog) {
      const pad = (y1 - y0) * 0.06;
      [y0, y1] = [y0 >= 0 && y0 - pad < 0 ? y0 : y0 - pad, y1 + pad];
    }
    const x = scale(x0, x1, LEFT, width - RIGHT, look.xlog && !this.spec.own, [[x0]]);
    const y = scale(y0, y1, height - BOTTOM, TOP, look.ylog && !this.spec.own, values);
    this.x = x;
    this.axes(c, x, y, width, height);
    c.save();
    c.beginPath();
    c.rect(LEFT - 5, TOP - 4, width - LEFT - RIGHT + 10, height - TOP - BOTTOM + 4);
    c.clip();
    for (const s of lines) if (s.stack) area(c, s.x, s.stack[0], s.stack[1], x, y, fade(s.colour, 0.75));
    for (const s of lines) {
      if (s.low && s.high && !s.stack) area(c, s.x, s.low, s.high, x, y, fade(s.colour, 0.13));
      if (s.band) area(c, s.x, s.band[0], s.band[1], x, y, fade(s.colour, 0.2));
      if (s.raw) path(c, s.x, s.raw, x, y, fade(s.colour, 0.3), 1, []);
    }
    for (const s of lines) {
      if (s.stack) continue;
      path(c, s.x, s.y, x, y, s.colour, s.thin ? 1.2 : 2, s.dash ?? []);
      if (s.dots || s.x.length === 1) dots(c, s.x, s.y, x, y, s.colour);
    }
    c.restore();
    this.cross(c, x, y, height, lines);
  }

  axes(c, x, y, width, height) {
    c.lineWidth = 1;
    c.strokeStyle = colour("grid");
    c.fillStyle = colour("dim");
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const v of y.ticks(Math.max(2, height / 32))) {
      const p = Math.round(y.at(v)) + 0.5;
      c.beginPath();
      c.moveTo(LEFT, p);
      c.lineTo(width - RIGHT, p);
      c.strokeStyle = v === 0 ? colour("line") : colour("grid");
      c.stroke();
      c.fillText(number(v), LEFT - 7, p);
    }
    c.textBaseline = "top";
    const timed = look.axis === "wall_seconds" && !this.spec.own;
    const marks = x.ticks(Math.max(2, width / (timed ? 110 : 75)));
    marks.forEach((v) => {
      const p = x.at(v);
      if (p < LEFT - 1 || p > width - RIGHT + 1) return;
      const text = this.spec.own ? number(v) : xText(v);
      const half = c.measureText(text).width / 2;
      c.textAlign = "left";
      c.fillText(text, Math.min(Math.max(p - half, LEFT - 12), width - 2 * half), height - BOTTOM + 7);
    });
  }

  cross(c, x, y, height, lines) {
    const at = this.spec.own ? this.cursor : look.cursor;
    if (at === null || at === undefined) {
      this.tip.hidden = true;
      return;
    }
    const p = x.at(at);
    c.strokeStyle = colour("dim");
    c.setLineDash([3, 3]);
    c.beginPath();
    c.moveTo(p, TOP);
    c.lineTo(p, height - BOTTOM);
    c.stroke();
    c.setLineDash([]);
    const rows = [];
    for (const s of lines) {
      const i = nearest(s.x, at);
      const value = s.stack ? s.value[i] : s.y[i];
      if (!s.stack) dots(c, [s.x[i]], [value], x, y, s.colour);
      if (s.label && !s.quiet) rows.push([s, value, s.band ? ` ± ${number((s.band[1][i] - s.band[0][i]) / 2)}` : "", s.x[i]]);
    }
    if (!this.active) {
      this.tip.hidden = true;
      return;
    }
    const shown = rows.slice(0, 12);
    const where = this.spec.own ? number(at) : `${xText(rows[0]?.[3] ?? at)} ${look.axis === "wall_seconds" ? "" : AXES[look.axis]}`;
    this.tip.replaceChildren(
      h("div", { class: "dim" }, where),
      h("table", {}, ...shown.map(([s, value, more]) => h("tr", {}, h("td", {}, swatch(s)), h("td", {}, s.label), h("td", {}, number(value) + more)))),
      ...(rows.length > shown.length ? [h("div", { class: "dim" }, `and ${rows.length - shown.length} more`)] : []),
    );
    this.tip.hidden = false;
    this.read = `${where}: ` + shown.map(([s, value, more]) => `${s.label} ${number(value)}${more}`).join(", ");
    const wide = this.tip.offsetWidth, room = this.plot.clientWidth;
    this.tip.style.left = `${p + 14 + wide < room ? p + 14 : Math.max(0, p - 14 - wide)}px`;
    this.tip.style.top = `${Math.max(0, Math.min(TOP + 4, this.plot.clientHeight - this.tip.offsetHeight))}px`;
  }

  moveTo(value) {
    if (this.spec.own) {
      this.cursor = value;
      this.draw();
    } else {
      look.cursor = value;
      this.events.moved(this);
    }
  }

  listen() {
    const canvas = this.canvas;
    let start = null;
    const place = (event) => Math.min(Math.max(event.clientX - canvas.getBoundingClientRect().left, LEFT), canvas.clientWidth - RIGHT);
    canvas.addEventListener("pointermove", (event) => {
      if (!this.x) return;
      this.active = true;
      this.moveTo(this.x.back(place(event)));
      if (start !== null && !this.spec.own) {
        const c = canvas.getContext("2d"), end = place(event);
        c.fillStyle = fade(colour("accent"), 0.15);
        c.fillRect(Math.min(start, end), TOP, Math.abs(end - start), canvas.clientHeight - TOP - BOTTOM);
      }
    });
    canvas.addEventListener("pointerleave", () => {
      if (start !== null) return;
      this.active = false;
      this.moveTo(null);
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0 && this.x) {
        start = place(event);
        canvas.setPointerCapture(event.pointerId);
      }
    });
    canvas.addEventListener("pointerup", (event) => {
      const end = place(event);
      if (start !== null && Math.abs(end - start) > 8 && !this.spec.own) {
        this.events.zoom([this.x.back(Math.min(start, end)), this.x.back(Math.max(start, end))]);
      }
      start = null;
    });
    canvas.addEventListener("dblclick", () => this.events.zoom?.(null));
    canvas.addEventListener("blur", () => {
      this.active = false;
      this.moveTo(null);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const longest = this.series.reduce((a, s) => (s.x.length > (a?.x.length ?? 0) ? s : a), null);
    if (!longest || !this.x) return;
    const inside = longest.x.filter((v) => !look.range || this.spec.own || (v >= look.range[0] && v <= look.range[1]));
    const xs = inside.length ? inside : longest.x;
    const now = (this.spec.own ? this.cursor : look.cursor) ?? xs[xs.length - 1];
    const i = nearest(xs, now), jump = event.shiftKey ? Math.max(1, Math.round(xs.length / 10)) : 1;
    const to = { ArrowLeft: i - jump, ArrowRight: i + jump, Home: 0, End: xs.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      event.stopPropagation();
      this.active = true;
      this.moveTo(xs[Math.min(Math.max(to, 0), xs.length - 1)]);
      this.events.say?.(this.read);
      return;
    }
    const factor = { "+": 0.5, "=": 0.5, "-": 2, "0": Infinity }[event.key];
    if (factor === undefined || this.spec.own) return;
    event.preventDefault();
    event.stopPropagation();
    const whole = look.range ?? [xs[0], xs[xs.length - 1]];
    const half = ((whole[1] - whole[0]) / 2) * factor;
    this.events.zoom(Number.isFinite(half) && half > 0 ? [now - half, now + half] : null);
  }
}

function swatch(s) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", "18");
  svg.setAttribute("height", "10");
  svg.setAttribute("aria-hidden", "true");
  const mark = document.createElementNS("http://www.w3.org/2000/svg", s.stack ? "rect" : "line");
  const set = s.stack ? { x: 3, y: 0, width: 12, height: 10, rx: 2, fill: s.colour } : { x1: 0, y1: 5, x2: 18, y2: 5, stroke: s.colour, "stroke-width": 2.5, "stroke-dasharray": (s.dash ?? []).join(" ") };
  for (const [k, v] of Object.entries(set)) if (v !== "") mark.setAttribute(k, v);
  svg.append(mark);
  return svg;
}

function path(c, xs, ys, x, y, stroke, width, dashes) {
  c.beginPath();
  let down = false;
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null) {
      down = false;
      continue;
    }
    const px = x.at(xs[i]), py = y.at(ys[i]);
    if (!Number.isFinite(px) || !Number.isFinite(py)) {
      down = false;
      continue;
    }
    if (down) c.lineTo(px, py); else c.moveTo(px, py);
    down = true;
  }
  c.strokeStyle = stroke;
  c.lineWidth = width;
  c.lineJoin = "round";
  c.setLineDash(dashes);
  c.stroke();
  c.setLineDash([]);
}

function area(c, xs, low, high, x, y, fill) {
  c.beginPath();
  for (let i = 0; i < xs.length; i++) c.lineTo(x.at(xs[i]), y.at(high[i]));
  for (let i = xs.length - 1; i >= 0; i--) c.lineTo(x.at(xs[i]), y.at(low[i]));
  c.closePath();
  c.fillStyle = fill;
  c.fill();
}

function dots(c, xs, ys, x, y, fill) {
  c.fillStyle = fill;
  c.strokeStyle = colour("card");
  c.lineWidth = 1.2;
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null) continue;
    c.beginPath();
    c.arc(x.at(xs[i]), y.at(ys[i]), 3.2, 0, 7);
    c.fill();
    c.stroke();
  }
}
