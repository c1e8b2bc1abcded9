// The page: the list of runs kept up to date by one stream of events, what is overlaid, tabs, theme, keyboard.

import { $, h, number, duration, recall, remember, forgetColours, COLOURS } from "/util.js";
import { look } from "/chart.js";
import { Curves } from "/curves.js";
import { Panels } from "/panels.js";

const TABS = ["curves", "views", "settings", "log", "files", "compare"];
const AXES = ["env_steps", "wall_seconds", "episodes", "updates"];

const state = { runs: new Map(), selected: [], slots: new Map(), focus: null, tab: "curves" };
const say = (text) => { $("say").textContent = text ?? ""; };
const curves = new Curves(state, say);
const panels = new Panels(state, say);
let rows = new Map(); // run id -> its element in the list
let order = []; // ids as listed
let built = ""; // how the list was put together last
const PAGE = 200; // runs in the list at first, and more at each click: a thousand take a second to draw
let listed = PAGE;

// --- what is chosen -------------------------------------------------------------------------------------------------

function select(id, on) {
  if (on === state.selected.includes(id)) return;
  if (on) {
    const used = new Set(state.slots.values());
    let slot = 0;
    while (used.has(slot) && slot < COLOURS) slot++;
    state.slots.set(id, slot < COLOURS ? slot : state.selected.length % COLOURS);
    state.selected.push(id);
  } else {
    state.selected = state.selected.filter((other) => other !== id);
    state.slots.delete(id);
  }
}

function focusOn(id, alone) {
  if (alone) for (const other of [...state.selected]) if (other !== id) select(other, false);
  if (!state.runs.get(id)?.folder) select(id, true);
  state.focus = id;
  changed();
}

function changed() {
  if (!state.runs.has(state.focus)) state.focus = state.selected[0] ?? null;
  list();
  summary();
  look.range = null;
  $("unzoom").hidden = true;
  curves.refresh(true);
  panels.show(state.tab);
  const query = new URLSearchParams({ tab: state.tab, x: look.axis });
  if (state.focus) query.set("focus", state.focus);
  if (state.selected.length) query.set("runs", state.selected.join("."));
  history.replaceState(null, "", "#" + query);
}

// --- the list -------------------------------------------------------------------------------------------------------

function worth(run) {
  return run.final ?? run.eval ?? run.average ?? run.return ?? -Infinity;
}

const ORDERS = {
  new: (a, b) => (b.started ?? "").localeCompare(a.started ?? "") || a.name.localeCompare(b.name, undefined, { numeric: true }),
  name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
  return: (a, b) => worth(b) - worth(a),
};

const folderOf = (run) => (run.folder ? run.name : run.name.includes("/") ? run.name.slice(0, run.name.lastIndexOf("/")) : "");

function list() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (run) => `${run.name} ${run.env} ${run.algo} ${run.state} seed ${run.seed}`.toLowerCase();
  const shown = [...state.runs.values()].filter((run) => words.every((word) => text(run).includes(word))).sort(ORDERS[$("sort").value]);
  const groups = new Map(), page = shown.slice(0, listed);
  $("more").hidden = page.length === shown.length;
  $("more").textContent = `Show ${Math.min(PAGE, shown.length - page.length)} more of ${shown.length}`;
  for (const run of page) {
    const folder = folderOf(run);
    if (!groups.has(folder)) groups.set(folder, []);
    groups.get(folder).push(run);
  }
  const kept = new Map();
  order = [];
  const sections = [...groups].map(([folder, members]) => {
    members.sort((a, b) => Number(b.folder) - Number(a.folder));
    for (const run of members) {
      const item = rows.get(run.id) ?? row(run.id);
      kept.set(run.id, item);
      order.push(run.id);
      item.update(run, folder, members.length === 1);
    }
    const runs = members.filter((run) => !run.folder).map((run) => run.id);
    return { folder, ids: members.map((run) => run.id), runs, all: runs.length > 0 && runs.every((id) => state.selected.includes(id)) };
  });
  rows = kept;
  $("none").hidden = state.runs.size > 0;
  const key = JSON.stringify(sections);
  if (key === built) return; // only numbers changed: nothing moves under the pointer
  built = key;
  const focused = document.activeElement?.closest?.(".run")?.dataset.id;
  const inName = document.activeElement?.classList.contains("name");
  $("runs").replaceChildren(...sections.map(section));
  if (focused && rows.has(focused)) rows.get(focused).element.querySelector(inName ? ".name" : "input")?.focus({ preventScroll: true });
}

function section({ folder, ids, runs, all }) {
  const toggle = () => {
    for (const id of runs) select(id, !all);
    if (!all && runs.length) state.focus = runs[0];
    changed();
  };
  const button = runs.length > 1 && h("button", { onclick: toggle, "aria-label": `${all ? "Take out" : "Overlay"} all runs of ${folder}` }, all ? "none" : "all");
  const cut = folder.lastIndexOf("/") + 1; // trials of a sweep differ in the end of their name, which stays in sight
  const name = h("b", { title: folder }, cut > 0 && h("span", {}, folder.slice(0, cut)), h("span", {}, folder.slice(cut)));
  const head = folder && runs.length > 0 && h("div", { class: "group-head" }, name, button);
  return h("div", { class: "group", role: "group", "aria-label": folder || "Runs" }, head, ...ids.map((id) => rows.get(id).element));
}

function row(id) {
  const box = h("input", { type: "checkbox", onchange: () => { select(id, box.checked); if (box.checked) state.focus = id; changed(); } });
  const name = h("button", { class: "name", onclick: (event) => { focusOn(id, !(event.ctrlKey || event.metaKey || event.shiftKey)); closeSide(); } });
  const chip = h("span", { class: "chip" });
  const meta = h("div", { class: "meta" });
  const bar = h("progress", { max: 1 });
  const element = h("div", { class: "run" }, box, name, chip, meta, bar);
  element.dataset.id = id;
  const update = (run, folder, alone) => {
    const label = run.folder ? (alone ? run.name : "overview") : folder ? run.name.slice(folder.length + 1) : run.name;
    element.classList.toggle("focus", state.focus === id);
    box.style.visibility = run.folder ? "hidden" : "";
    box.checked = state.selected.includes(id);
    box.setAttribute("aria-label", `Overlay ${run.name}`);
    if (box.checked) element.style.setProperty("--run", `var(--c${state.slots.get(id)})`);
    name.textContent = label;
    name.title = run.name;
    name.setAttribute("aria-current", state.focus === id ? "true" : "false");
    chip.className = `chip ${run.state}`;
    chip.textContent = run.folder ? "folder" : STATES[run.state] ?? run.state;
    chip.title = run.detail ?? "";
    const facts = [
      run.folder ? null : [run.env, run.algo].filter(Boolean).join(" "),
      run.return !== undefined ? `R ${number(run.return)}` : null,
      run.state === "running" && run.speed !== undefined ? `${number(run.speed)}/s` : run.env_steps !== undefined ? `${number(run.env_steps)} steps` : null,
    ];
    meta.textContent = facts.filter(Boolean).join(" · ");
    bar.hidden = run.state !== "running" || run.progress === null;
    bar.value = run.progress ?? 0;
    bar.setAttribute("aria-label", `Progress of ${run.name}`);
  };
  return { element, update };
}

const STATES = { dead: "process gone", silent: "no sign of life", unknown: "no status" };

// --- the run in focus -----------------------------------------------------------------------------------------------

function summary() {
  const run = state.runs.get(state.focus);
  if (!run) return $("focus").replaceChildren(h("h2", {}, state.runs.size ? "No run chosen" : "Waiting for runs"));
  const left = run.state === "running" && run.progress > 0.005 && run.wall_seconds ? (run.wall_seconds * (1 - run.progress)) / run.progress : null;
  const success = run.eval_success ?? run.success;
  const facts = [
    ["Return", run.return, run.average !== undefined ? `average ${number(run.average)}` : ""],
    ["Evaluation", run.final ?? run.eval, run.solved ? "solved" : run.final !== null && run.final !== undefined ? "best policy" : ""],
    ["Success", success === undefined ? undefined : `${Math.round(100 * success)}%`, run.eval_success === undefined ? "in training" : "in evaluation"],
    ["Steps", run.env_steps, run.total_steps && typeof run.total_steps === "number" ? `of ${number(run.total_steps)}` : ""],
    ["Speed", run.speed, "steps/s"],
    ["Time", run.wall_seconds === undefined ? undefined : duration(run.wall_seconds), left ? `${duration(left)} left` : ""],
  ].filter(([, value]) => value !== undefined && value !== null);
  const what = run.folder ? "a folder of runs" : [run.env, run.algo && (run.algo.length > 6 ? run.algo : run.algo.toUpperCase()), run.seed === null || run.seed === undefined ? null : `seed ${run.seed}`].filter(Boolean).join(" · ");
  const gone = run.state === "dead" ? `process ${run.pid} is gone without a word; regimen resume continues the run` : null;
  const parts = [
    h("div", { class: "title" }, h("h2", {}, run.name), h("span", { class: `chip ${run.state}` }, run.folder ? "folder" : STATES[run.state] ?? run.state)),
    h("p", { class: "detail" }, [what, gone ?? run.detail].filter(Boolean).join("; ")),
    facts.length > 0 && h("dl", { class: "facts" }, ...facts.map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, typeof value === "number" ? number(value) : value, more ? h("small", {}, ` ${more}`) : "")))),
  ];
  $("focus").replaceChildren(...parts.filter(Boolean));
}

// --- news -----------------------------------------------------------------------------------------------------------

function connect() {
  const stream = new EventSource("/api/events");
  const live = (on) => {
    $("live").classList.toggle("on", on);
    $("live").textContent = on ? "live" : "reconnecting";
  };
  stream.addEventListener("hello", (event) => {
    live(true);
    const { folder, runs } = JSON.parse(event.data);
    $("folder").textContent = folder;
    document.title = `${folder} – Regimen`;
    const first = !state.runs.size;
    state.runs = new Map(runs.map((run) => [run.id, run]));
    for (const id of [...state.selected]) if (!state.runs.has(id)) select(id, false);
    if (first) begin();
    changed();
  });
  stream.addEventListener("runs", (event) => {
    const { runs, gone } = JSON.parse(event.data);
    const empty = !state.runs.size;
    for (const id of gone) {
      state.runs.delete(id);
      select(id, false);
    }
    let touched = gone.includes(state.focus);
    for (const run of runs) {
      state.runs.set(run.id, run);
      if (state.selected.includes(run.id)) curves.refresh();
    }
    if (empty || touched) {
      if (empty) begin();
      return changed();
    }
    list();
    summary();
    if (runs.some((run) => run.id === state.focus)) panels.news(state.tab);
  });
  stream.onerror = () => live(false);
}

/** At first the runs of the address, else the newest that runs, else the newest. */
function begin() {
  const query = new URLSearchParams(location.hash.slice(1));
  for (const id of (query.get("runs") ?? "").split(".")) if (state.runs.has(id)) select(id, true);
  if (state.runs.has(query.get("focus"))) state.focus = query.get("focus");
  if (TABS.includes(query.get("tab"))) openTab(query.get("tab"), true);
  if (AXES.includes(query.get("x"))) $("axis").value = look.axis = query.get("x");
  if (state.selected.length || state.focus) return;
  const runs = [...state.runs.values()].filter((run) => !run.folder).sort(ORDERS.new);
  const first = runs.find((run) => run.state === "running") ?? runs[0];
  if (first) {
    select(first.id, true);
    state.focus = first.id;
  }
}

// --- controls -------------------------------------------------------------------------------------------------------

function openTab(name, quiet) {
  state.tab = name;
  for (const tab of TABS) {
    $("tab-" + tab).setAttribute("aria-selected", String(tab === name));
    $("tab-" + tab).tabIndex = tab === name ? 0 : -1;
    $("panel-" + tab).hidden = tab !== name;
  }
  const list = $("tab-" + name).parentElement, [here, all] = [$("tab-" + name), list].map((part) => part.getBoundingClientRect());
  list.scrollLeft += Math.max(0, here.right - all.right) - Math.max(0, all.left - here.left); // on a phone they do not all fit
  if (!quiet) changed();
}

const MOON = "M21 14.5A8.5 8.5 0 0 1 9.5 3a9 9 0 1 0 11.5 11.5z";
const SUN = "M12 7a5 5 0 1 0 0 10 5 5 0 0 0 0-10zM11 1h2v4h-2zM11 19h2v4h-2zM1 11h4v2H1zM19 11h4v2h-4zM4.2 2.8l2.9 2.9-1.4 1.4-2.9-2.9zM18.3 16.9l2.9 2.9-1.4 1.4-2.9-2.9zM2.8 19.8l2.9-2.9 1.4 1.4-2.9 2.9zM16.9 5.7l2.9-2.9 1.4 1.4-2.9 2.9z";
const system = matchMedia("(prefers-color-scheme: dark)");

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  const dark = name ? name === "dark" : system.matches;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", dark ? SUN : MOON);
  svg.append(path);
  $("theme").replaceChildren(svg);
  $("theme").setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} theme`);
  forgetColours();
  curves.arrange();
  panels.redraw();
}

/** To the other one; a choice that is the system's own follows the system again. */
function switchTheme() {
  const current = document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
  const other = current === "dark" ? "light" : "dark";
  const own = other === (system.matches ? "dark" : "light") ? null : other;
  remember("theme", own);
  theme(own);
}

function smoothing(value) {
  $("smooth").value = String(value);
  look.smooth = Number($("smooth").value) / 100;
  $("smooth-out").textContent = look.smooth ? `${$("smooth").value}%` : "off";
  remember("smooth", $("smooth").value);
  curves.redraw();
}

const openSide = (on) => {
  $("side").classList.toggle("open", on);
  $("show-runs").setAttribute("aria-expanded", String(on));
};
const closeSide = () => openSide(false);

$("show-runs").onclick = () => openSide(!$("side").classList.contains("open"));
$("filter").oninput = () => { listed = PAGE; list(); };
$("more").onclick = () => { listed += PAGE; list(); };
$("sort").onchange = () => { remember("sort", $("sort").value); list(); };
$("axis").onchange = () => { look.axis = $("axis").value; changed(); };
$("smooth").oninput = () => smoothing(Number($("smooth").value));
$("ylog").onchange = () => { look.ylog = $("ylog").checked; curves.redraw(); };
$("xlog").onchange = () => { look.xlog = $("xlog").checked; curves.redraw(); };
$("add").onchange = () => { curves.add($("add").value); $("add").value = ""; };
$("unzoom").onclick = () => curves.events.zoom(null);
$("theme").onclick = switchTheme;
$("help").onclick = () => $("keys").showModal();
system.addEventListener("change", () => theme(recall("theme")));
for (const name of TABS) $("tab-" + name).onclick = () => openTab(name);
document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const to = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!to) return;
  const name = TABS[(TABS.indexOf(state.tab) + to + TABS.length) % TABS.length];
  openTab(name);
  $("tab-" + name).focus();
});

function step(by) {
  if (!order.length) return;
  const i = order.indexOf(state.focus);
  const id = order[Math.min(Math.max(i + by, 0), order.length - 1)];
  focusOn(id, true);
  rows.get(id)?.element.scrollIntoView({ block: "nearest" });
  say(state.runs.get(id)?.name);
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  x: () => { if (state.focus) { select(state.focus, !state.selected.includes(state.focus)); changed(); } },
  "/": () => { openSide(true); $("filter").focus(); },
  a: () => { $("axis").value = look.axis = AXES[(AXES.indexOf(look.axis) + 1) % AXES.length]; changed(); say($("axis").selectedOptions[0].textContent); },
  s: () => smoothing(Math.min(20, Number($("smooth").value) + 1)),
  S: () => smoothing(Math.max(0, Number($("smooth").value) - 1)),
  l: () => { $("ylog").checked = look.ylog = !look.ylog; curves.redraw(); },
  0: () => curves.events.zoom(null),
  p: () => panels.play(),
  t: switchTheme,
  "?": () => $("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || $("keys").open) return;
  const typing = event.target.matches("input[type=search], select");
  if (event.key === "Escape") {
    closeSide();
    if (typing) event.target.blur();
    return;
  }
  if (typing) return;
  const tab = TABS[Number(event.key) - 1];
  const act = KEYS[event.key] ?? (tab && (() => openTab(tab)));
  if (act) {
    event.preventDefault();
    act();
  }
});

$("sort").value = recall("sort") ?? "new";
if (!$("sort").value) $("sort").value = "new";
openTab("curves", true);
theme(recall("theme"));
smoothing(Number(recall("smooth") ?? 0));
connect();
