// What the parts of the page share: elements made from text only, numbers for people, colours of the theme.

/** An element; strings become text, never markup. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (key in element && key !== "list") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const $ = (id) => document.getElementById(id);

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return trim(value / 1e9) + "G";
  if (size >= 1e6) return trim(value / 1e6) + "M";
  if (size >= 1e4) return trim(value / 1e3) + "k";
  if (size !== 0 && size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}

/** Values of an axis as text that differs from one to the next: as many digits as that takes. */
export function distinct(values, text = number) {
  const some = values.filter((v) => v !== null && v !== undefined), plain = some.map(text);
  if (new Set(plain).size === new Set(some).size) return values.map((v) => (v === null || v === undefined ? "" : text(v)));
  const step = Math.min(...some.slice(1).map((v, i) => Math.abs(v - some[i])).filter((d) => d > 0));
  const digits = Math.min(12, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
  return values.map((v) => (v === null || v === undefined ? "" : v.toFixed(digits)));
}

const trim = (value) => String(Number(value.toPrecision(4)));

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const s = Math.round(seconds);
  if (s < 60) return (seconds < 10 ? Number(seconds.toPrecision(2)) : s) + " s";
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
}

export const COLOURS = 10;
let resolved = {};

/** A colour of the theme as a canvas understands it. */
export function colour(name) {
  if (!resolved[name]) {
    const probe = h("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    resolved[name] = getComputedStyle(probe).color;
    probe.remove();
  }
  return resolved[name];
}

export function forgetColours() {
  resolved = {};
}

export const fade = (rgb, alpha) => rgb.replace(/^rgb\(([^)]*)\)$/, (_, parts) => `rgba(${parts}, ${alpha})`);

const remembered = {};
export function remember(key, value) {
  remembered[key] = value;
  try {
    if (value === null) localStorage.removeItem("regimen." + key);
    else localStorage.setItem("regimen." + key, value);
  } catch { /* a browser without storage forgets */ }
}

export function recall(key) {
  try {
    return localStorage.getItem("regimen." + key);
  } catch {
    return remembered[key] ?? null;
  }
}

/** A canvas drawn at the screen's own resolution: [context, width, height] in CSS pixels, cleared. */
export function surface(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return [context, width, height];
}

/** Round values between low and high, about `wanted` of them. */
export function ticks(low, high, wanted) {
  const span = high - low;
  if (!(span > 1e-12 * Math.max(Math.abs(low), Math.abs(high)))) return [low];
  const rough = span / Math.max(1, wanted);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough * 0.999) ?? 10 * unit;
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && out.length < 60; i++) out.push(Number((i * step).toPrecision(12)));
  return out;
}
