// Which charts there are for the runs that are overlaid, and the lines in them. One request brings all lines.

import { $, h, colour, COLOURS } from "/util.js";
import { Chart, look, dash } from "/chart.js";

const starts = (prefix) => (name) => name.startsWith(prefix) && !/_(min|max)$/.test(name);
const among = (...names) => (name) => names.includes(name);

// title, which metrics, and how: several runs are told apart by colour, several metrics of a chart by dashes
const CHARTS = [
  { title: "Return", of: among("rollout/return_mean", "rollout/return_ma"), how: "average", note: "episodes in training, and their moving average" },
  { title: "Evaluation", of: among("eval/return_mean", "eval/return_std", "eval/episodes"), how: "interval", note: "greedy policy, 95% interval" },
  { title: "Reward components", of: starts("rollout/reward/"), how: "stack" },
  { title: "Success", of: among("rollout/success_rate", "eval/success_rate") },
  { declared: true }, // of metrics to which the environment gives a label
  { title: "Losses", of: (name) => /^train\/(\w+_)?loss(_\w+)?$/.test(name) },
  { title: "Entropy", of: (name) => name === "train/entropy" || name.startsWith("train/entropy/") },
  { title: "KL divergence", of: (name) => name === "train/approx_kl" || name.startsWith("train/approx_kl/") },
  { title: "Policy lag", of: among("train/lag_mean", "train/lag_min", "train/lag_max"), note: "updates" },
  { title: "Component weights", of: starts("train/weight/"), how: "one" },
  { title: "Streaks", of: among("zero_conflict_streak", "perfect_streak"), how: "still" },
  { title: "Stages", of: (name) => name.startsWith("train/curriculum/") || name === "band" || name === "good_bands", how: "still" },
  { title: "Explained variance", of: among("train/explained_variance") },
  { title: "Episode length", of: among("rollout/length_mean", "eval/length_mean") },
  { title: "Speed", of: among("time/steps_per_second"), note: "steps per second" },
];

/** A metric's name in a legend, in words: its group is in the title of the chart. */
function short(name) {
  const rest = name.replace(/^(rollout|train|time)\/(reward\/|weight\/|curriculum\/)?/, "").replace(/^eval\//, "eval ").replace(/^(entropy|approx_kl)\//, "");
  const network = rest.match(/^loss_(\w+)$/); // of several networks, whose names are those of the equations
  return network ? `loss of ${network[1]}` : rest.replace(/^approx_kl/, "approximate KL").replaceAll("_", " ");
}

const floats = (text, Kind) => Array.from(new Kind(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer));

/** Numbers come as base64 of their bytes, and an x that several lines have comes once. */
function unpack(run) {
  const axes = run.axes.map((text) => floats(text, Float64Array));
  for (const line of Object.values(run.lines)) {
    line.x = axes[line.x];
    for (const name of ["y", "low", "high"]) if (line[name] !== undefined) line[name] = floats(line[name], Float32Array);
  }
}

export class Curves {
  /** `state`: what is overlaid (`selected` ids in order, `runs`, `slots`, `focus`); `say` speaks to screen readers. */
  constructor(state, say) {
    this.state = state;
    this.charts = new Map(); // title -> Chart
    this.extra = []; // metrics with a chart of their own
    this.data = {}; // run id -> answer of the server
    this.names = new Set();
    this.events = {
      say,
      zoom: (range) => {
        look.range = range;
        $("unzoom").hidden = !range;
        this.refresh(true);
      },
    };
  }

  /** Ask for the lines again, soon; at most one request at a time. */
  refresh(now = false) {
    this.wanted = true;
    if (this.timer || this.busy) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      this.fetch();
    }, now ? 0 : 200 + 200 * Math.random()); // many pages do not all ask at once
  }

  async fetch() {
    const { selected } = this.state;
    if (!selected.length) return this.arrange();
    this.wanted = false;
    this.busy = true;
    try {
      const specs = this.specs();
      const metrics = [...this.names].filter((name) => specs.some((spec) => spec.of(name)));
      const query = new URLSearchParams({ x: look.axis, width: String(Math.round(this.width() / 2)) });
      for (const id of selected.slice(0, 24)) query.append("run", id);
      for (const name of metrics.slice(0, 120)) query.append("metric", name);
      if (look.range) {
        query.set("from", String(look.range[0]));
        query.set("to", String(look.range[1]));
      }
      const answer = await fetch("/api/series?" + query);
      if (!answer.ok) throw new Error(answer.statusText);
      this.data = await answer.json();
      for (const run of Object.values(this.data)) unpack(run);
      const before = this.names.size;
      const names = new Set(selected.flatMap((id) => Object.keys(this.data[id]?.metrics ?? {})));
      const fresh = [...names].some((name) => !this.names.has(name));
      this.names = names;
      if (fresh || before !== names.size) {
        this.options();
        if (fresh) this.wanted = "now";
      }
      this.arrange();
    } catch (error) {
      console.warn("series", error);
    } finally {
      this.busy = false;
      if (this.wanted) this.refresh(this.wanted === "now");
    }
  }

  width() {
    const first = this.charts.values().next().value;
    return first?.plot.clientWidth || Math.min(480, window.innerWidth - 60);
  }

  specs() {
    const own = this.extra.map((name) => ({ title: name, of: among(name), remove: () => this.remove(name) }));
    return [...CHARTS.flatMap((spec) => (spec.declared ? this.declared() : [spec])), ...own];
  }

  /** A chart for every label that the environments of the chosen runs give to metrics of theirs. */
  declared() {
    const names = new Map(); // label -> metrics
    for (const id of this.state.selected) {
      for (const [name, label] of Object.entries(this.state.runs.get(id)?.labels ?? {})) {
        names.set(label, [...(names.get(label) ?? []), ...(name.includes("/") ? [name] : [`rollout/${name}`, `eval/${name}`])]);
      }
    }
    return [...names].map(([label, metrics]) => ({ title: label[0].toUpperCase() + label.slice(1), of: among(...metrics) }));
  }

  add(name) {
    if (name && !this.extra.includes(name)) this.extra.unshift(name);
    this.refresh(true);
  }

  remove(name) {
    this.extra = this.extra.filter((other) => other !== name);
    this.arrange();
  }

  options() {
    const groups = new Map();
    for (const name of [...this.names].sort()) {
      const group = name.includes("/") ? name.split("/")[0] : "counters";
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(name);
    }
    const made = [...groups].map(([group, names]) => h("optgroup", { label: group }, ...names.map((name) => h("option", { value: name }, name))));
    $("add").replaceChildren(h("option", { value: "" }, "a chart of…"), ...made);
  }

  /** Make the charts that have something to show, in order, and give them their lines. */
  arrange() {
    const box = $("charts");
    const wanted = this.specs().filter((spec) => [...this.names].some((name) => spec.of(name)));
    const extraFirst = [...wanted.filter((spec) => spec.remove), ...wanted.filter((spec) => !spec.remove)];
    const list = this.state.selected.length ? extraFirst : [];
    for (const [title, chart] of this.charts) {
      if (!list.some((spec) => spec.title === title)) {
        chart.close();
        this.charts.delete(title);
      }
    }
    list.forEach((spec, i) => {
      let chart = this.charts.get(spec.title);
      if (!chart) this.charts.set(spec.title, (chart = new Chart(spec, this.events)));
      if (box.children[i] !== chart.element) box.insertBefore(chart.element, box.children[i] ?? null);
      this.fill(chart, spec);
    });
    for (const child of [...box.children].slice(list.length)) child.remove();
    if (!list.length) {
      const text = this.state.selected.length ? "This run has not logged anything yet." : "Choose a run to see its curves.";
      box.append(h("div", { class: "card empty" }, text));
    }
    this.remarks();
  }

  remarks() {
    const parts = this.state.selected.flatMap((id) => {
      const data = this.data[id], name = this.state.runs.get(id)?.name;
      if (!data || !name) return [];
      return [
        data.indexing !== null && data.indexing !== undefined ? `${name}: reading its metrics, ${Math.round(100 * data.indexing)}%` : null,
        data.bad_lines ? `${name}: ${data.bad_lines} lines of metrics.jsonl could not be read` : null,
      ].filter(Boolean);
    });
    $("note").hidden = !parts.length;
    $("note").textContent = parts.join("; ");
  }

  redraw() {
    for (const chart of this.charts.values()) chart.draw();
  }

  fill(chart, spec) {
    const { runs, focus, selected } = this.state;
    const ids = selected.filter((id) => this.data[id] && Object.keys(this.data[id].lines).some((name) => spec.of(name)));
    const one = spec.how === "stack" || spec.how === "one";
    const shown = one ? [ids.includes(focus) ? focus : ids[0]].filter(Boolean) : ids;
    const note = one && shown.length && selected.length > 1 ? runs.get(shown[0])?.name : spec.note;
    if (spec.how === "stack") return chart.show(shown.length ? this.stack(shown[0], spec) : [], note);
    const series = [], legend = [], metrics = new Map(), called = tails(shown.map((id) => runs.get(id)?.name ?? id));
    for (const [k, id] of shown.entries()) {
      const lines = this.data[id].lines;
      const names = Object.keys(lines).filter((name) => spec.of(name) && lines[name].x.length);
      if (spec.how === "one") byComponent(names, lines);
      const run = called[k];
      const hue = colour("c" + this.state.slots.get(id));
      if (spec.how === "interval") series.push(...interval(lines, run, hue));
      else if (spec.how === "average") series.push(...average(lines, run, hue));
      else names.forEach((name, i) => {
        const many = shown.length > 1, several = names.length > 1;
        const label = many ? (several ? `${run} · ${short(name)}` : run) : short(name);
        if (many && several) metrics.set(i, short(name));
        series.push({ label, colour: many || !several ? hue : colour("c" + (i % COLOURS)), dash: many ? dash(i) : [], still: spec.how === "still", ...lines[name] });
      });
    }
    if (metrics.size) { // runs by colour, metrics by dashes: a legend of both, not of every pair
      for (const [k, id] of shown.entries()) legend.push({ label: called[k], colour: colour("c" + this.state.slots.get(id)) });
      for (const [i, label] of metrics) legend.push({ label, colour: colour("ink"), dash: dash(i) });
    }
    chart.show(series, note ?? "", legend.length ? legend : undefined);
  }

  /** Components of one run on top of each other: gains upwards from zero, losses downwards, and their sum. */
  stack(id, spec) {
    const lines = this.data[id].lines;
    const names = Object.keys(lines).filter((name) => spec.of(name) && lines[name].x.length);
    const longest = names.reduce((n, name) => Math.max(n, lines[name].x.length), 0);
    const parts = names.filter((name) => lines[name].x.length === longest);
    if (!parts.length) return [];
    const x = lines[parts[0]].x;
    const up = x.map(() => 0), down = x.map(() => 0);
    const series = parts.map((name, k) => {
      const y = lines[name].y;
      const from = x.map((_, i) => (y[i] >= 0 ? up[i] : down[i]));
      const to = x.map((_, i) => from[i] + y[i]);
      x.forEach((_, i) => { if (y[i] >= 0) up[i] = to[i]; else down[i] = to[i]; });
      return { label: short(name), colour: colour("c" + (k % COLOURS)), x, y, value: y, stack: [from, to], n: lines[name].n };
    });
    return [...series, { label: "sum", colour: colour("ink"), x, y: x.map((_, i) => up[i] + down[i]), thin: true, still: true }];
  }
}

/** The weights in the order of the reward components: a component has one colour in both charts. */
function byComponent(names, lines) {
  const order = Object.keys(lines).filter(starts("rollout/reward/")).map(short);
  names.sort((a, b) => order.indexOf(short(a)) - order.indexOf(short(b)));
}

function interval(lines, run, hue) {
  const mean = lines["eval/return_mean"], std = lines["eval/return_std"], count = lines["eval/episodes"];
  if (!mean?.x.length) return [];
  const sound = std && count && std.x.length === mean.x.length && count.x.length === mean.x.length;
  const half = sound ? mean.y.map((_, i) => (1.96 * std.y[i]) / Math.sqrt(Math.max(1, count.y[i]))) : null;
  const band = half && [mean.y.map((v, i) => v - half[i]), mean.y.map((v, i) => v + half[i])];
  return [{ label: run, colour: hue, dots: mean.x.length < 80, still: true, x: mean.x, y: mean.y, n: mean.n, band }];
}

function average(lines, run, hue) {
  const raw = lines["rollout/return_mean"], ma = lines["rollout/return_ma"];
  if (!raw?.x.length) return [];
  if (!ma || ma.x.length !== raw.x.length) return [{ label: run, colour: hue, ...raw }];
  return [{ label: run, colour: hue, x: ma.x, y: ma.y, raw: raw.y, low: raw.low, high: raw.high, n: raw.n }];
}

/** The ends of paths, with as many folders as it takes for all to differ: what a legend calls several runs. */
function tails(names) {
  const parts = names.map((name) => name.split("/"));
  for (let n = 1; ; n++) {
    const ends = parts.map((part) => part.slice(-n).join("/"));
    if (new Set(ends).size === new Set(names).size) return ends;
  }
}
