"use strict";
const flights = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const COLORS = ["#3182ce", "#dd6b20", "#38a169", "#805ad5", "#d53f8c", "#0987a0", "#975a16", "#718096", "#e53e3e", "#319795", "#5a67d8", "#b83280"];
let flight = flights[0], time = 0, playing = false, last = 0;
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function fill() {
  const groups = new Map();
  flights.forEach((f, i) => {
    const name = f.policy + ", " + f.scenario;
    if (!groups.has(name)) {
      const g = document.createElement("optgroup");
      g.label = name;
      groups.set(name, g);
      $("flight").append(g);
    }
    const o = document.createElement("option");
    o.value = i;
    o.textContent = f.policy + " · " + f.scenario + " · " + f.shift + " · episode " + f.episode + " · smallest " + f.smallest + " NM";
    groups.get(name).append(o);
  });
}

function choose(i) {
  i = (i + flights.length) % flights.length;
  $("flight").value = i;
  flight = flights[i];
  $("slider").max = flight.steps;
  const body = $("aircraft").tBodies[0];
  body.replaceChildren();
  flight.ids.forEach((id, k) => {
    const row = body.insertRow();
    const first = row.insertCell();
    const dot = document.createElement("span");
    dot.className = "swatch";
    dot.style.background = COLORS[k % COLORS.length];
    first.append(dot, id);
    for (let c = 0; c < 5; c++) row.insertCell();
    row.cells[5].className = "text";
  });
  seek(0);
}

function seek(t) {
  time = Math.min(Math.max(t, 0), flight.steps);
  $("slider").value = Math.round(time);
  draw();
}

function toggle(on) {
  playing = on === undefined ? !playing : on;
  if (playing && time >= flight.steps) time = 0;
  $("play").textContent = playing ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", playing);
  last = 0;
  if (playing) requestAnimationFrame(tick);
}

function tick(now) {
  if (!playing) return;
  if (last) time += (now - last) / 1000 * Number($("speed").value) / flight.period;
  last = now;
  if (time >= flight.steps) { time = flight.steps; toggle(false); }
  seek(time);
  if (playing) requestAnimationFrame(tick);
}

function canvas(id, ratio) {
  const c = $(id), w = c.clientWidth, h = Math.round(id === "map" ? Math.min(w * ratio, Math.max(window.innerHeight * 0.72, 320)) : Math.max(w * ratio, 130)), d = window.devicePixelRatio || 1;
  if (c.width !== Math.round(w * d) || c.height !== Math.round(h * d)) {
    c.width = Math.round(w * d);
    c.height = Math.round(h * d);
    c.style.height = h + "px";
  }
  const g = c.getContext("2d");
  g.setTransform(d, 0, 0, d, 0, 0);
  g.clearRect(0, 0, w, h);
  return [g, w, h];
}

// aircraft k is drawn until the row at which it has arrived
const until = k => flight.arrived[k] < 0 ? flight.steps : flight.arrived[k];
function at(k, t) {
  t = Math.min(t, until(k));
  const a = Math.floor(t), b = Math.min(a + 1, until(k)), f = t - a;
  const n = flight.north[k], e = flight.east[k];
  return [n[a] + (n[b] - n[a]) * f, e[a] + (e[b] - e[a]) * f];
}

// aircraft in the air at the time shown, and the distance of two of them
const flies = k => time < until(k) || (time === until(k) && flight.arrived[k] < 0);
function apart(i, j) {
  const a = at(i, time), b = at(j, time);
  return Math.hypot(a[0] - b[0], a[1] - b[1]);
}
const close = k => flies(k) && flight.ids.some((_, j) => j !== k && flies(j) && apart(j, k) < 5);

function draw() {
  const [g, w, h] = canvas("map", 0.78);
  const north = [], east = [];
  flight.ids.forEach((_, k) => {
    north.push(flight.goal[k][0], ...flight.north[k].slice(0, until(k) + 1));
    east.push(flight.goal[k][1], ...flight.east[k].slice(0, until(k) + 1));
  });
  const n0 = Math.min(...north) - 4, n1 = Math.max(...north) + 4, e0 = Math.min(...east) - 4, e1 = Math.max(...east) + 4;
  const scale = Math.min(w / (e1 - e0), h / (n1 - n0));
  const x = e => w / 2 + (e - (e0 + e1) / 2) * scale, y = n => h / 2 - (n - (n0 + n1) / 2) * scale;
  const text = css("--text"), dim = css("--dim"), los = css("--los"), alert = css("--alert"), ghost = css("--ghost");
  // a grid of 10 NM
  g.strokeStyle = css("--grid");
  g.lineWidth = 1;
  g.beginPath();
  const half = [w / 2 / scale, h / 2 / scale], mid = [(e0 + e1) / 2, (n0 + n1) / 2];
  for (let v = Math.ceil((mid[0] - half[0]) / 10) * 10; v < mid[0] + half[0]; v += 10) { g.moveTo(x(v), 0); g.lineTo(x(v), h); }
  for (let v = Math.ceil((mid[1] - half[1]) / 10) * 10; v < mid[1] + half[1]; v += 10) { g.moveTo(0, y(v)); g.lineTo(w, y(v)); }
  g.stroke();
  g.fillStyle = g.strokeStyle = dim;
  g.font = "12px system-ui, sans-serif";
  g.beginPath(); g.moveTo(14, h - 16); g.lineTo(14 + 10 * scale, h - 16); g.moveTo(14, h - 20); g.lineTo(14, h - 12);
  g.moveTo(14 + 10 * scale, h - 20); g.lineTo(14 + 10 * scale, h - 12); g.stroke();
  g.fillText("10 NM", 18, h - 22);
  g.textAlign = "center"; g.fillText("N", w - 20, 30);
  g.beginPath(); g.moveTo(w - 20, 8); g.lineTo(w - 25, 18); g.lineTo(w - 15, 18); g.fill(); g.textAlign = "left";

  const now = Math.floor(time), ungated = $("ungated").checked;
  const flags = ungated ? flight.ungated : flight.alert;
  flight.ids.forEach((id, k) => {
    const color = COLORS[k % COLORS.length], end = until(k);
    const line = (from, to, alpha, width) => {
      g.globalAlpha = alpha; g.lineWidth = width; g.strokeStyle = color; g.beginPath();
      for (let t = from; t <= to; t++) g.lineTo(x(flight.east[k][t]), y(flight.north[k][t]));
      if (to === now && to < end) { const p = at(k, time); g.lineTo(x(p[1]), y(p[0])); }
      g.stroke(); g.globalAlpha = 1;
    };
    line(0, end, 0.28, 1.5);
    line(0, Math.min(now, end), 1, 2.2);
    const gx = x(flight.goal[k][1]), gy = y(flight.goal[k][0]);
    g.strokeStyle = color; g.lineWidth = 1.6; g.beginPath();
    g.moveTo(gx, gy - 7); g.lineTo(gx + 7, gy); g.lineTo(gx, gy + 7); g.lineTo(gx - 7, gy); g.closePath(); g.stroke();
    for (let t = 0; t <= Math.min(now, end); t++) {
      const px = x(flight.east[k][t]), py = y(flight.north[k][t]);
      if (flags[k][t] && !(t && flags[k][t - 1])) {
        const hidden = ungated && !flight.alert[k].slice(t, t + 3).some(Boolean);
        g.fillStyle = g.strokeStyle = hidden ? ghost : alert; g.lineWidth = 1.6;
        g.beginPath(); g.moveTo(px, py - 8); g.lineTo(px + 7, py + 5); g.lineTo(px - 7, py + 5); g.closePath();
        if (hidden) g.stroke(); else g.fill();
      }
      if (flight.los[k][t] && t < time && t < end) {
        const p = at(k, Math.min(t + 0.5, end)), mx = x(p[1]), my = y(p[0]);
        g.strokeStyle = los; g.lineWidth = 1.8; g.beginPath();
        g.moveTo(mx - 4, my - 4); g.lineTo(mx + 4, my + 4); g.moveTo(mx + 4, my - 4); g.lineTo(mx - 4, my + 4); g.stroke();
      }
    }
  });
  flight.pairs.forEach((p, i) => {
    if (!flies(p[0]) || !flies(p[1])) return;
    const lost = apart(p[0], p[1]) < 5, soon = flight.conflict[i][Math.min(now, flight.steps)];
    if (!lost && !soon) return;
    const a = at(p[0], time), b = at(p[1], time);
    g.strokeStyle = lost ? los : css("--conflict"); g.lineWidth = lost ? 2 : 1.4;
    g.setLineDash(lost ? [] : [6, 5]); g.beginPath(); g.moveTo(x(a[1]), y(a[0])); g.lineTo(x(b[1]), y(b[0])); g.stroke(); g.setLineDash([]);
  });
  flight.ids.forEach((id, k) => {
    if (time > until(k)) return;
    const p = at(k, time), color = COLORS[k % COLORS.length], px = x(p[1]), py = y(p[0]);
    const bad = close(k);
    if ($("circles").checked) {
      g.beginPath(); g.arc(px, py, 2.5 * scale, 0, 2 * Math.PI);
      g.globalAlpha = bad ? 0.25 : 0.1; g.fillStyle = bad ? los : color; g.fill();
      g.globalAlpha = 0.9; g.strokeStyle = bad ? los : color; g.lineWidth = 1.2; g.stroke(); g.globalAlpha = 1;
    }
    const r = flight.track[k][Math.min(now, until(k))] * Math.PI / 180;
    g.save(); g.translate(px, py); g.rotate(r); g.fillStyle = color; g.beginPath();
    g.moveTo(0, -9); g.lineTo(6, 7); g.lineTo(0, 3.5); g.lineTo(-6, 7); g.closePath(); g.fill(); g.restore();
    g.fillStyle = text; g.fillText(id, px + 10, py - 8);
  });
  table(now);
  strip();
  const s = Math.round(time * flight.period);
  $("clock").textContent = Math.floor(s / 60) + ":" + String(s % 60).padStart(2, "0") + ", decision " + now + " of " + flight.steps;
}

function table(now) {
  [...$("aircraft").tBodies[0].rows].forEach((row, k) => {
    const t = Math.min(now, until(k)), done = flight.arrived[k] >= 0 && now >= flight.arrived[k];
    const gaps = flight.ids.map((_, j) => j).filter(j => j !== k && flies(j)).map(j => apart(k, j));
    row.cells[1].textContent = String(Math.round(flight.track[k][t]) % 360).padStart(3, "0") + "°";
    row.cells[2].textContent = Math.round(flight.speed[k][t]);
    row.cells[3].textContent = flight.togo[k][t].toFixed(1);
    row.cells[4].textContent = done || !gaps.length ? "" : Math.min(...gaps).toFixed(1);
    const i = Math.min(now, flight.steps);
    const state = done ? ["arrived", "done"] : close(k) ? ["LoS", "los"] : flight.alert[k][i] ? ["alert", "alert"]
      : flight.ungated[k][i] ? ["manoeuvre", "ghost"] : ["", ""];
    row.cells[5].textContent = state[0];
    row.cells[5].className = "text" + (state[1] ? " state-" + state[1] : "");
  });
}

function strip() {
  const [g, w, h] = canvas("strip", 0.2), left = 34, right = w - 8, top = 10, bottom = h - 46;
  const most = Math.max(12, ...flight.gap.filter(v => v !== null).map(v => Math.min(v, 30)));
  const x = t => left + (right - left) * t / Math.max(flight.steps, 1), y = v => bottom - (bottom - top) * Math.min(v, most) / most;
  g.font = "11px system-ui, sans-serif"; g.fillStyle = css("--dim"); g.strokeStyle = css("--line"); g.lineWidth = 1;
  [0, 5, 10, 20, 30].filter(v => v <= most).forEach(v => {
    g.beginPath(); g.moveTo(left, y(v)); g.lineTo(right, y(v)); g.stroke(); g.fillText(v, 8, y(v) + 4);
  });
  g.strokeStyle = css("--los"); g.setLineDash([4, 4]); g.beginPath(); g.moveTo(left, y(5)); g.lineTo(right, y(5)); g.stroke(); g.setLineDash([]);
  g.strokeStyle = css("--accent"); g.lineWidth = 1.8; g.beginPath();
  let pen = false;
  flight.gap.forEach((v, t) => { if (v === null) { pen = false; return; } if (pen) g.lineTo(x(t), y(v)); else g.moveTo(x(t), y(v)); pen = true; });
  g.stroke();
  const any = (rows, t) => rows.some(r => r[t]);
  for (let t = 0; t < flight.steps; t++) {
    const width = Math.max(x(t + 1) - x(t), 1);
    if (any(flight.conflict, t)) { g.globalAlpha = 0.5; g.fillStyle = css("--conflict"); g.fillRect(x(t), bottom + 8, width, 7); g.globalAlpha = 1; }
    if (any($("ungated").checked ? flight.ungated : flight.alert, t)) { g.fillStyle = css("--alert"); g.fillRect(x(t), bottom + 20, width, 7); }
    if (any(flight.los, t)) { g.fillStyle = css("--los"); g.fillRect(x(t), bottom + 32, width, 7); }
  }
  g.fillStyle = css("--dim"); g.font = "10px system-ui, sans-serif";
  [["C", 15], ["A", 27], ["L", 39]].forEach(r => g.fillText(r[0], 22, bottom + r[1]));
  g.strokeStyle = css("--text"); g.lineWidth = 1.2; g.beginPath(); g.moveTo(x(time), top - 4); g.lineTo(x(time), h - 4); g.stroke();
}

$("flight").addEventListener("change", e => choose(Number(e.target.value)));
$("prev").addEventListener("click", () => choose(Number($("flight").value) - 1));
$("next").addEventListener("click", () => choose(Number($("flight").value) + 1));
$("play").addEventListener("click", () => toggle());
$("slider").addEventListener("input", e => { toggle(false); seek(Number(e.target.value)); });
["circles", "ungated"].forEach(id => $(id).addEventListener("change", draw));
$("strip").addEventListener("click", e => seek((e.offsetX - 34) / (e.target.clientWidth - 42) * flight.steps));
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.addEventListener("keydown", e => {
  if (e.altKey || e.ctrlKey || e.metaKey || e.target.tagName === "SELECT") return;
  const step = e.shiftKey ? 10 : 1;
  const keys = { ArrowLeft: () => seek(Math.ceil(time) - step), ArrowRight: () => seek(Math.floor(time) + step), Home: () => seek(0), End: () => seek(flight.steps),
    "[": () => choose(Number($("flight").value) - 1), "]": () => choose(Number($("flight").value) + 1), " ": () => toggle() };
  if (e.key === " " && (e.target.tagName === "BUTTON" || e.target.type === "checkbox")) return;
  if (keys[e.key]) { e.preventDefault(); if (e.key.startsWith("Arrow")) toggle(false); keys[e.key](); }
});
if (flights.length) {
  fill();
  const wanted = new URLSearchParams(location.hash.slice(1));
  choose(Number(wanted.get("flight")) || 0);
  if (wanted.get("time")) seek(Number(wanted.get("time")));
}
