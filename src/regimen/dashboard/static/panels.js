// The other tabs: pictures, settings and their difference, the log, files.

import { $, h } from "/util.js";
import { Picture } from "/views.js";

const get = async (url) => {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(answer.status === 404 ? "this run is gone" : answer.statusText);
  return answer.json();
};

const isPicture = (name) => /\.(png|gif|jpg|webp)$/i.test(name);

export class Panels {
  constructor(state, say) {
    this.state = state;
    this.say = say;
    this.picture = null;
    this.turn = 0;
    this.chosen = new Map(); // run id -> title of the picture that was looked at last
  }

  async show(tab) {
    const panel = $("panel-" + tab);
    if (tab !== "views") this.stop();
    if (tab === "curves") return;
    const id = this.state.focus, turn = ++this.turn;
    if (!id) {
      this.stop();
      return panel.replaceChildren(h("div", { class: "empty" }, "Choose a run."));
    }
    try {
      const made = await this[tab](id, () => turn === this.turn);
      if (turn === this.turn && made) panel.replaceChildren(...made);
    } catch (error) {
      if (turn === this.turn) panel.replaceChildren(h("p", { class: "error" }, String(error.message)));
    }
  }

  /** Something of the run in focus changed. */
  news(tab) {
    if (tab === "log") this.show(tab);
    if (tab === "views" && !this.later) {
      this.later = setTimeout(() => {
        this.later = null;
        if (this.state.tab === "views") this.show("views");
      }, 3000);
    }
  }

  redraw() {
    this.picture?.draw();
  }

  play() {
    this.picture?.toggle?.();
  }

  stop() {
    this.picture?.close();
    this.picture = null;
    this.shown = null;
  }

  async views(id, current) {
    const { views, hint } = await get(`/api/runs/${id}`);
    if (!current()) return null;
    if (!views.length) {
      this.stop();
      return [h("div", { class: "empty" }, h("p", {}, "This run holds no pictures."), ...hint.map((text) => h("p", {}, text)))];
    }
    const key = `${id} ${views.map((view) => view.id + view.stamp).join(" ")}`;
    if (this.shown === key) return null; // nothing new: what is looked at stays as it is
    const wanted = views.find((view) => view.title === this.chosen.get(id)) ?? views[0];
    const choose = h("select", { "aria-label": "Picture" }, ...views.map((view) => h("option", { value: view.id, selected: view === wanted }, view.title)));
    const place = h("div", {});
    const open = async () => {
      const view = views.find((other) => other.id === choose.value);
      this.chosen.set(id, view.title);
      const found = await get(`/api/runs/${id}/views/${view.id}`).catch((error) => ({ error: error.message }));
      const before = this.picture?.source === id + view.id ? this.picture : null; // the same, written anew
      this.picture?.close();
      this.picture = null;
      if (found.error) return place.replaceChildren(h("p", { class: "error", role: "alert" }, found.error));
      try {
        this.picture = new Picture(found, id, this.say);
        this.picture.source = id + view.id;
        place.replaceChildren(this.picture.element);
        if (before) this.picture.resume(before);
        this.picture.draw();
      } catch (error) {
        place.replaceChildren(h("p", { class: "error", role: "alert" }, `${view.title}: ${error.message}`));
      }
    };
    choose.onchange = open;
    this.shown = key;
    open();
    return [h("div", { class: "tools" }, h("label", {}, "Show ", choose)), place];
  }

  async settings(id) {
    const ids = this.state.selected.includes(id) ? this.state.selected.slice(0, 12) : [id];
    const all = await Promise.all(ids.map((one) => get(`/api/runs/${one}`)));
    const keys = [...new Set(all.flatMap((run) => Object.keys(run.config)))];
    const text = (run, key) => (key in run.config ? (typeof run.config[key] === "string" ? run.config[key] : JSON.stringify(run.config[key])) : "");
    const differs = (key) => new Set(all.map((run) => text(run, key))).size > 1;
    const several = all.length > 1;
    const only = h("input", { type: "checkbox", checked: several && this.onlyDifferent !== false });
    const find = h("input", { type: "search", placeholder: "Filter settings", "aria-label": "Filter settings", value: this.find ?? "" });
    const body = h("tbody");
    const fill = () => {
      this.onlyDifferent = several ? only.checked : this.onlyDifferent;
      this.find = find.value;
      const shown = keys.filter((key) => key.includes(find.value.trim()) && (!several || !only.checked || differs(key)));
      body.replaceChildren(...shown.map((key) => h("tr", { class: several && differs(key) ? "differs" : "" }, h("th", { scope: "row" }, key), ...all.map((run) => h("td", {}, text(run, key))))));
      if (!shown.length) body.append(h("tr", {}, h("td", { colSpan: all.length + 1 }, several && only.checked ? "no difference" : "nothing")));
    };
    only.onchange = find.oninput = fill;
    fill();
    const first = all[ids.indexOf(id)] ?? all[0];
    const versions = Object.entries(first.status.versions ?? {}).map(([name, version]) => `${name} ${version}`).join(", ");
    const head = several && h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "unseen" }, "setting")), ...all.map((run) => h("th", { scope: "col" }, run.run.name))));
    return [
      h("div", { class: "tools" }, find, several && h("label", {}, only, "only what differs")),
      ...all.filter((run) => run.config_error).map((run) => h("p", { class: "error" }, `${run.run.name}: config.yaml: ${run.config_error}`)),
      h("div", { class: "scroll" }, h("table", { class: "plain" }, head, body)),
      ...(first.command ? [h("h3", {}, "Command"), h("pre", {}, first.command)] : []),
      ...(versions ? [h("h3", {}, "Made with"), h("p", { class: "dim" }, [versions, first.status.device, first.status.git_revision].filter(Boolean).join("; "))] : []),
    ];
  }

  /** Which of the chosen runs is better: what `regimen compare` says of them. */
  async compare(id, current) {
    const ids = this.state.selected.slice(0, 24);
    if (ids.length < 2) return [h("div", { class: "empty" }, h("p", {}, "Choose two runs or more in the list."), h("p", {}, "Runs of one algorithm are compared by name, of several by algorithm."))];
    const query = new URLSearchParams(ids.map((one) => ["run", one]));
    if (this.by) query.set("by", this.by);
    $("panel-compare").replaceChildren(h("p", { class: "dim", role: "status" }, "Comparing…"));
    const { error, verdicts, tables, notes } = await get("/api/compare?" + query);
    if (!current()) return null;
    const by = h("select", { "aria-label": "Groups" }, ...[["", "as they differ"], ["name", "each run by itself"], ["algorithm", "by algorithm"], ["env", "by environment"]].map(([value, text]) => h("option", { value, selected: value === (this.by ?? "") }, text)));
    by.onchange = () => {
      this.by = by.value;
      this.show("compare");
    };
    const tools = h("div", { class: "tools" }, h("label", {}, "Groups ", by));
    if (error) return [tools, h("p", { class: "error", role: "alert" }, error)];
    const table = ({ title, head, rows }) => [
      h("h3", {}, title),
      h("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": title }, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ...head.map((text) => h("th", { scope: "col" }, text || h("span", { class: "unseen" }, "group"))))), h("tbody", {}, ...rows.map((cells) => h("tr", {}, ...cells.map((text, i) => (i ? h("td", {}, text) : h("th", { scope: "row" }, text)))))))),
    ];
    return [tools, ...verdicts.map((text) => h("p", { class: "verdict" }, text)), ...tables.flatMap(table), ...(notes.length ? [h("h3", {}, "Notes"), h("ul", { class: "dim" }, ...notes.map((text) => h("li", {}, text)))] : [])];
  }

  async log(id, current) {
    const { lines, error } = await get(`/api/runs/${id}/log`);
    if (!current()) return null;
    const old = $("panel-log").querySelector("pre");
    const atEnd = !old || old.scrollTop + old.clientHeight >= old.scrollHeight - 30;
    const pre = h("pre", { class: "log", tabIndex: 0, "aria-label": "Log" }, lines.length ? lines.join("\n") : error ?? "nothing logged yet");
    const top = old?.scrollTop ?? 0;
    requestAnimationFrame(() => { pre.scrollTop = atEnd ? pre.scrollHeight : top; });
    return [pre];
  }

  async files(id) {
    const { files, summary } = await get(`/api/runs/${id}`);
    const link = (file) => h("a", { class: "card", href: `/api/runs/${id}/files/${file.id}`, target: "_blank", rel: "noopener noreferrer" }, isPicture(file.name) && h("img", { src: `/api/runs/${id}/files/${file.id}`, alt: "", loading: "lazy" }), file.name);
    const facts = Object.entries(summary).filter(([, value]) => value !== null && typeof value !== "object");
    return [
      files.length ? h("div", { class: "files" }, ...files.map(link)) : h("div", { class: "empty" }, "No report or plots yet; they are written at the end of a run."),
      ...(facts.length ? [h("h3", {}, "Summary"), h("div", { class: "scroll" }, h("table", { class: "plain" }, h("tbody", {}, ...facts.map(([key, value]) => h("tr", {}, h("th", { scope: "row" }, key), h("td", {}, String(value)))))))] : []),
    ];
  }
}
