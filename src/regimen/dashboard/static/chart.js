// One chart: our series drawn by uPlot (vendor/, MIT licence), with a legend, a tip that reads values, and the keyboard.

/* global uPlot */
import { h, number, distinct, duration, colour, fade } from "/util.js";

/** What all charts have in common; the page changes it and redraws. `range` is the zoomed part of the axis. */
export const look = { axis: "env_steps", smooth: 0, ylog: false, xlog: false, range: null };

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2]];
const AXES = { env_steps: "steps", wall_seconds: "wall time", episodes: "episodes", updates: "updates" };
const FONT = "12px system-ui, sans-serif";
const LINEAR = 1, LOG = 3, ARCSINH = 4; // distributions of a scale, as uPlot numbers them
export const dash = (i) => DASHES[i % DASHES.length];

const xText = (x) => (look.axis === "wall_seconds" ? duration(x) : number(x));

/** A mean whose memory is a share of the axis, so that it looks the same however many points there are. */
function smoothed(x, y, share, span) {
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

/** The ends of a linear axis: a little room around the values, and no sign that they do not have. */
function around(low, high) {
  if (low === null || !Number.isFinite(low)) return [0, 1];
  if (!(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)))) {
    if (low === 0 && high === 0) return [0, 1]; // a rate of nothing, or losses that are none
    const room = Math.abs(low) * 0.05;
    return [low - room, high + room];
  }
  const room = (high - low) * 0.06;
  return [low >= 0 && low - room < 0 ? low : low - room, high + room];
}

/** Zero and powers of ten on an arcsinh axis of so many pixels, as many as can be read. */
function powers(low, high, linear, height) {
  const at = (v) => Math.asinh(v / linear), scale = height / (at(high) - at(low));
  const marks = low <= 0 && high >= 0 ? [0] : [];
  for (const sign of [-1, 1]) {
    let last = 0;
    for (let v = linear; v <= Math.max(-low, high); v *= 10) {
      if (sign * v < low || sign * v > high || (at(v) - at(last)) * scale < 24) continue;
      marks.push(sign * v);
      last = v;
    }
  }
  return marks.sort((a, b) => a - b);
}

/** One chart. `spec`: title, note, remove, own (an x axis of its own). `show(series)` gives it lines:
 *  {label, colour, dash, x, y, raw, low, high, band: [low, high], dots, stack: [from, to], value}. */
export class Chart {
  constructor(spec, events) {
    this.spec = spec;
    this.events = events;
    this.series = [];
    this.legend = h("ul", { class: "legend" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.note = h("span", {}, spec.note ?? "");
    const close = spec.remove && h("button", { class: "plain", "aria-label": `Remove ${spec.title}`, onclick: spec.remove }, "×");
    this.plot = h("div", { class: "plot", tabIndex: 0, role: "img", "aria-label": spec.title }, this.tip);
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.leave());
    this.element = h("figure", { class: "card chart" }, h("figcaption", {}, h("b", {}, spec.title), this.note, close), this.legend, this.plot);
    this.sizes = new ResizeObserver(() => (this.graph ? this.graph.setSize(this.size()) : this.draw()));
    this.sizes.observe(this.plot);
  }

  close() {
    this.sizes.disconnect();
    this.graph?.destroy();
    this.element.remove();
  }

  size() {
    return { width: this.plot.clientWidth, height: this.plot.clientHeight };
  }

  /** `legend` replaces the legend, where that is not one entry for each line. */
  show(series, note, legend) {
    this.series = series.filter((s) => s.x.length);
    if (note !== undefined) this.note.textContent = note;
    const entries = this.series.filter((s) => s.label);
    const named = legend ?? entries;
    const key = JSON.stringify(named.map((s) => [s.label, s.colour, s.dash]));
    if (key !== this.legendKey) {
      this.legendKey = key;
      this.legend.replaceChildren(...named.map((s) => h("li", { title: s.label }, swatch(s), h("span", {}, s.label))));
      this.legend.classList.toggle("many", named.length > 4);
    }
    const latest = entries.slice(0, 4).map((s) => `${s.label}: ${number(s.y[s.y.length - 1])}`).join(", ");
    this.plot.setAttribute("aria-label", `${this.spec.title} over ${AXES[look.axis] ?? "x"}; latest ${latest || "none"}`);
    this.plot.dataset.points = this.series.reduce((sum, s) => sum + (s.n ?? s.x.length), 0);
    this.plot.dataset.lines = entries.length;
    this.draw();
  }

  /** The series as drawn: from the first positive x on where that axis is logarithmic, smoothed, the raw line beside. */
  lines() {
    const log = look.xlog && !this.spec.own;
    return this.series.map((s) => {
      const from = log ? s.x.findIndex((x) => x > 0) : 0;
      const cut = (array) => (from > 0 ? array.slice(from) : array);
      const x = from < 0 ? [] : cut(s.x), y = cut(s.y);
      const smooth = look.smooth && !s.stack && !s.still;
      const span = look.range ? look.range[1] - look.range[0] : x[x.length - 1] - x[0];
      return {
        ...s, x, y: smooth ? smoothed(x, y, look.smooth, span) : y,
        raw: s.raw ? cut(s.raw) : smooth ? y : undefined,
        band: s.band?.map(cut), stack: s.stack?.map(cut), value: s.value && cut(s.value),
        low: s.low && s.high && !s.stack ? cut(s.low) : undefined, high: s.high && cut(s.high),
      };
    }).filter((s) => s.x.length);
  }

  /** Columns for uPlot: lines, thin lines, and pairs of edges with an area between them. `named` has the series that a
   *  column is read for. */
  columns(lines) {
    const tables = [], series = [{}], bands = [], named = [null];
    const add = (table, y, style, line = null) => {
      table.push(y);
      named.push(line);
      return series.push({ points: { show: false }, ...style }) - 1;
    };
    const area = (table, low, high, fill) => {
      const edge = { stroke: "transparent", width: 0 };
      bands.push({ series: [add(table, high, edge), add(table, low, edge)], fill });
    };
    for (const s of lines) {
      const table = [s.x];
      tables.push(table);
      if (s.stack) {
        const [a, b] = s.stack;
        area(table, a.map((v, i) => Math.min(v, b[i])), a.map((v, i) => Math.max(v, b[i])), fade(s.colour, 0.75));
        add(table, s.value, { stroke: "transparent", width: 0, scale: "value" }, s);
        continue;
      }
      if (s.low) area(table, s.low, s.high, fade(s.colour, 0.13));
      if (s.band) area(table, s.band[0], s.band[1], fade(s.colour, 0.2));
      if (s.raw) add(table, s.raw, { stroke: fade(s.colour, 0.3), width: 1 });
      const points = { show: Boolean(s.dots) || s.x.length === 1, size: 7, width: 1.2, stroke: colour("card"), fill: s.colour };
      add(table, s.y, { stroke: s.colour, width: s.thin ? 1.2 : 2, dash: s.dash ?? [], points }, s);
    }
    return { data: tables.length === 1 ? tables[0] : uPlot.join(tables), series, bands, named };
  }

  /** How the y axis is spread: logarithmic where asked; around zero it is linear, so that signs survive. */
  spread(data, series) {
    if (!look.ylog || this.spec.own) return { distr: LINEAR, range: (_, low, high) => around(low, high) };
    const shown = data.filter((_, i) => i && series[i].scale !== "value");
    const sizes = shown.flat().filter((v) => v).map(Math.abs).sort((a, b) => a - b);
    if (shown.every((column) => column.every((v) => v === null || v === undefined || v > 0))) return { distr: LOG, range: (_, low, high) => (low > 0 ? uPlot.rangeLog(low, high, 10, false) : [1, 10]) };
    const asinh = 10 ** Math.round(Math.log10(sizes[Math.floor(sizes.length * 0.02)] ?? 1));
    return { distr: ARCSINH, asinh, range: (_, low, high) => around(low, high) };
  }

  draw() {
    if (!this.plot.clientWidth) return;
    const lines = this.lines();
    if (!lines.length) {
      this.clear();
      this.plot.append((this.none = h("div", { class: "empty" }, "no points yet")));
      return;
    }
    const { data, series, bands, named } = this.columns(lines);
    this.named = named;
    const y = this.spread(data, series);
    const key = JSON.stringify([series, bands, y, look, colour("dim"), colour("grid")], (k, v) => (typeof v === "function" ? undefined : v));
    if (key === this.drawnAs) {
      this.graph.setData(data);
      return;
    }
    this.clear();
    this.drawnAs = key;
    this.graph = new uPlot(this.options(series, bands, y), data, this.plot);
    this.graph.over.addEventListener("pointermove", (event) => {
      if (event.pointerType === "touch") this.graph.setCursor({ left: event.offsetX, top: event.offsetY }, true, true);
    });
  }

  clear() {
    this.none?.remove();
    this.graph?.destroy();
    this.graph = this.drawnAs = null;
  }

  options(series, bands, y) {
    const own = this.spec.own, timed = look.axis === "wall_seconds" && !own;
    const lines = { stroke: colour("dim"), font: FONT, ticks: { show: false }, grid: { stroke: colour("grid"), width: 1 } };
    const height = this.plot.clientHeight - 34; // less the x axis and the room above
    const marks = y.distr === ARCSINH ? { splits: (_u, _i, low, high) => powers(low, high, y.asinh, height), filter: (_, all) => all } : {};
    const marked = (i) => this.named[i] && !this.named[i].stack;
    return {
      ...this.size(),
      series, bands,
      padding: [8, 20, 0, 0], // room for half of the last label
      legend: { show: false },
      scales: {
        x: { time: false, distr: look.xlog && !own ? LOG : LINEAR, range: (_, low, high) => (own || !look.range ? (low === high ? around(low, high) : [low, high]) : look.range) },
        y,
        value: { auto: false, range: [0, 1] }, // of what is read from a stack and not drawn
      },
      axes: [
        { ...lines, size: 26, gap: 6, space: timed ? 110 : 75, values: (_, marks) => distinct(marks, own ? number : xText) },
        { ...lines, ...marks, size: 52, gap: 4, space: 32, values: (_, marks) => distinct(marks) },
      ],
      cursor: {
        y: false,
        sync: own ? undefined : { key: "runs", setSeries: false, scales: ["x", null] },
        drag: { x: true, y: false, dist: 8, setScale: own },
        bind: own ? {} : { dblclick: () => () => this.events.zoom(null) },
        points: { size: 8, width: 1.2, fill: (_, i) => (marked(i) ? this.named[i].colour : "transparent"), stroke: (_, i) => (marked(i) ? colour("card") : "transparent") },
        dataIdx: (u, i, at) => this.nearest(u.data[i], at),
      },
      hooks: {
        init: [(u) => {
          u.over.addEventListener("mouseenter", () => { this.active = true; });
          u.over.addEventListener("mouseleave", () => { this.active = false; this.tip.hidden = true; });
        }],
        setCursor: [(u) => this.read(u)],
        setSelect: [(u) => {
          const { left, width } = u.select;
          if (own || width < 1) return;
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          this.events.zoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
        }],
      },
    };
  }

  /** The place nearest to `at` where a line has a value: lines of several runs seldom share their x. */
  nearest(column, at) {
    for (let far = 0; at - far >= 0 || at + far < column.length; far++) {
      if (column[at - far] !== null && column[at - far] !== undefined) return at - far;
      if (column[at + far] !== null && column[at + far] !== undefined) return at + far;
    }
    return at;
  }

  /** Say what every line is at the cursor: in the tip of the chart that is pointed at, and as text. */
  read(u) {
    const { left, idx, idxs } = u.cursor;
    if (!this.active || left < 0 || idx === null || idx === undefined) {
      this.tip.hidden = true;
      return;
    }
    const rows = [];
    this.named.forEach((line, i) => {
      const at = idxs[i];
      if (!line?.label || at === null || at === undefined) return;
      const k = line.band ? line.x.indexOf(u.data[0][at]) : -1;
      const half = k >= 0 ? ` ± ${number((line.band[1][k] - line.band[0][k]) / 2)}` : "";
      rows.push([line, number(u.data[i][at]) + half, u.data[0][at]]);
    });
    const at = rows[0]?.[2] ?? u.data[0][idx];
    const where = this.spec.own ? number(at) : `${xText(at)} ${look.axis === "wall_seconds" ? "" : AXES[look.axis]}`;
    const shown = rows.slice(0, 12);
    this.text = `${where}: ` + shown.map(([line, value]) => `${line.label} ${value}`).join(", ");
    this.tip.replaceChildren(
      h("div", { class: "dim" }, where),
      h("table", {}, ...shown.map(([line, value]) => h("tr", {}, h("td", {}, swatch(line)), h("td", {}, line.label), h("td", {}, value)))),
      ...(rows.length > shown.length ? [h("div", { class: "dim" }, `and ${rows.length - shown.length} more`)] : []),
    );
    this.tip.hidden = false;
    const from = u.over.offsetLeft + left, wide = this.tip.offsetWidth;
    this.tip.style.left = `${from + 14 + wide < this.plot.clientWidth ? from + 14 : Math.max(0, from - 14 - wide)}px`;
    this.tip.style.top = `${Math.max(0, Math.min(12, this.plot.clientHeight - this.tip.offsetHeight))}px`;
  }

  leave() {
    if (!this.active) return;
    this.active = false;
    this.graph?.setCursor({ left: -10, top: -10 }, true, true);
  }

  /** Arrows read values, plus and minus zoom about the value that is read, zero shows the whole range. */
  key(event) {
    const u = this.graph;
    if (!u) return;
    const all = u.data[0], { min, max } = u.scales.x;
    const first = all.findIndex((x) => x >= min), last = all.findLastIndex((x) => x <= max);
    const now = u.cursor.left >= 0 ? u.cursor.idx ?? last : last, jump = event.shiftKey ? Math.max(1, Math.round((last - first) / 10)) : 1;
    const to = { ArrowLeft: now - jump, ArrowRight: now + jump, Home: first, End: last }[event.key];
    const factor = { "+": 0.5, "=": 0.5, "-": 2, "0": Infinity }[event.key];
    if (to === undefined && (factor === undefined || this.spec.own)) return;
    event.preventDefault();
    event.stopPropagation();
    if (to === undefined) {
      const half = ((max - min) / 2) * factor;
      this.events.zoom(Number.isFinite(half) && half > 0 ? [all[now] - half, all[now] + half] : null);
      return;
    }
    this.active = true;
    const x = all[Math.min(Math.max(to, first), last)];
    u.setCursor({ left: u.valToPos(x, "x"), top: u.over.clientHeight / 2 }, true, true);
    this.events.say?.(this.text);
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
