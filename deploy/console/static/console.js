// Live parts of pages: health, server-sent events, charts, the theme. Without this file pages are complete, but not updated.
"use strict";

const POINTS_MAX = 450;
const STALE_S = 2.6; // as in health.py
const LOOK_MS = 1000;
const LOOK_MS_MAX = 2500;
const REOPEN_MS = 5000;

const CHARTS = {
  throughput: [(s) => s.bytes_in, (s) => s.bytes_out],
  latency: [(s) => s.append_p50_ms, (s) => s.append_p99_ms],
  records: [(s) => s.records],
  store: [(s) => s.put, (s) => s.get],
};

function isVisible() {
  return document.visibilityState === "visible";
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Axis labels with as many digits as the distance between two of them has.
function labels(ticks, step) {
  const isWhole = (value) => Math.abs(value - Math.round(value)) <= value * 1e-6;
  let digits = 0;
  while (digits < 6 && !isWhole((step || 1) * 10 ** digits)) digits += 1;
  return ticks.map((tick) => tick.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: digits }));
}

function byteLabels(ticks, step) {
  const top = Math.max(...ticks, 1);
  const power = Math.min(4, Math.floor(Math.log10(top) / 3));
  const unit = ["B", "kB", "MB", "GB", "TB"][power];
  return labels(ticks.map((tick) => tick / 1000 ** power), step / 1000 ** power).map((label) => `${label} ${unit}`);
}

class Charts {
  constructor(root) {
    this.samples = [];
    this.places = [...root.querySelectorAll("[data-chart]")];
    this.plots = new Map();
    new ResizeObserver(() => this.resize()).observe(root);
  }
  set(samples) {
    this.samples = samples.slice(-POINTS_MAX);
    this.draw();
  }
  add(sample) {
    this.samples.push(sample);
    this.samples.splice(0, this.samples.length - POINTS_MAX);
    this.draw();
  }
  data(name) {
    const times = this.samples.map((s) => s.at_ms / 1000);
    return [times, ...CHARTS[name].map((value) => this.samples.map(value))];
  }
  draw() {
    for (const place of this.places) {
      const name = place.dataset.chart;
      const plot = this.plots.get(name);
      if (plot) plot.setData(this.data(name));
      else this.plots.set(name, this.plot(place, name));
    }
  }
  plot(place, name) {
    const axis = () => ({
      stroke: () => color("--muted"),
      grid: { stroke: () => color("--line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    });
    const strokes = ["--accent", "--second"];
    const options = {
      width: place.clientWidth,
      height: 150,
      cursor: { y: false, points: { size: 5 } },
      legend: { show: false },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
      axes: [
        { ...axis(), size: 26, space: 90, values: (_, times) => times.map((t) => new Date(t * 1000).toTimeString().slice(0, 8)) },
        { ...axis(), size: 62, space: 34, values: (_, ticks, column, space, step) => (name === "throughput" ? byteLabels : labels)(ticks, step) },
      ],
      series: [
        {},
        ...CHARTS[name].map((_, i) => ({
          stroke: () => color(strokes[i]),
          width: 1.5,
          points: { show: false },
          spanGaps: false,
        })),
      ],
    };
    return new uPlot(options, this.data(name), place);
  }
  resize() {
    for (const place of this.places) {
      const plot = this.plots.get(place.dataset.chart);
      if (plot && place.clientWidth) plot.setSize({ width: place.clientWidth, height: 150 });
    }
  }
  redraw() {
    for (const plot of this.plots.values()) plot.redraw();
  }
}

function ageText(seconds) {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

// The problems of the cluster, and the age of the values on the page.
class Health {
  constructor(url) {
    this.url = url;
    this.ages = new Map();
    this.at = performance.now();
    this.isConnected = true;
    this.hasLooked = false;
    this.streams = new Map(); // whether streams of events are open
    this.read(document.querySelector("#health .health"));
    setInterval(() => this.show(), 100);
    document.addEventListener("visibilitychange", () => this.look());
    setInterval(() => this.look(), LOOK_MS);
    this.look();
  }
  read(found) {
    if (!found) return;
    this.ages = new Map(found.dataset.ages.trim().split(/\s+/).filter(Boolean).map((item) => {
      const [source, age] = item.split(":");
      return [source, Number(age)];
    }));
    this.at = performance.now();
  }
  async look() {
    if (this.isLooking || !isVisible()) return;
    this.isLooking = true;
    try {
      const response = await fetch(this.url, { cache: "no-store", signal: AbortSignal.timeout(LOOK_MS_MAX) });
      if (response.status === 401) return location.reload();
      if (!response.ok) throw new Error(response.status);
      this.replace(await response.text());
      this.isConnected = this.hasLooked = true;
    } catch {
      this.isConnected = false;
    } finally {
      this.isLooking = false;
      this.show();
    }
  }
  replace(text) {
    // The server escapes every name in a fragment, and the page's policy allows no inline script.
    const holder = document.createElement("template");
    holder.innerHTML = text;
    const fresh = holder.content.querySelector(".health");
    const old = document.querySelector("#health .health");
    if (!fresh || !old) return;
    this.read(fresh);
    // Screen readers announce only what is new.
    if (fresh.dataset.names !== old.dataset.names) old.replaceWith(fresh);
    else {
      const details = fresh.querySelectorAll(".detail");
      old.querySelectorAll(".detail").forEach((detail, at) => { if (details[at]) detail.innerHTML = details[at].innerHTML; });
    }
  }
  age(sources) {
    const since = (performance.now() - this.at) / 1000;
    const known = sources.split(" ").filter((source) => this.ages.has(source));
    const oldest = Math.max(0, ...known.map((source) => this.ages.get(source) + since));
    return oldest > STALE_S ? oldest : 0;
  }
  show() {
    for (const place of document.querySelectorAll("[data-source]")) {
      const age = this.age(place.dataset.source);
      set(place, age ? `${ageText(age)} old` : "");
    }
    for (const place of document.querySelectorAll("[data-values]")) place.classList.toggle("stale", this.age(place.dataset.values) > 0);
    for (const place of document.querySelectorAll("[data-since]")) {
      place.since ||= performance.now();
      set(place, ageText(Number(place.dataset.since) + (performance.now() - place.since) / 1000));
    }
    const chip = document.getElementById("state");
    if (!chip) return;
    const age = this.age([...this.ages.keys()].join(" "));
    const old = age ? `${ageText(age)} old` : "";
    const isOpen = this.hasLooked && [...this.streams.values()].every(Boolean);
    const [text, kind] = !this.isConnected ? [`not connected${old && `, ${old}`}`, "warn"] : old ? [`stale, ${old}`, "warn"] : !isOpen ? ["connecting", ""] : this.ages.size ? ["live", "good"] : ["connected", ""];
    set(chip, text);
    chip.className = `chip ${kind}`;
  }
}

function set(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

let charts = null;
let health = null;

// Receive the events of a page while it is visible.
function follow(root) {
  if (root.querySelector("[data-chart]")) charts = new Charts(root);
  let source = null;
  const note = (isOpen) => { if (health) { health.streams.set(root.dataset.live, isOpen); health.show(); } };
  const close = () => {
    if (source) source.close();
    source = null;
    note(false);
  };
  const open = () => {
    if (source || !isVisible() || !root.isConnected) return;
    source = new EventSource(root.dataset.live);
    source.addEventListener("open", () => note(true));
    source.addEventListener("error", () => {
      note(false);
      if (!source || source.readyState !== EventSource.CLOSED) return; // the browser connects again
      source = null;
      setTimeout(open, REOPEN_MS);
    });
    source.addEventListener("samples", (event) => charts && charts.set(JSON.parse(event.data)));
    source.addEventListener("sample", (event) => charts && charts.add(JSON.parse(event.data)));
    for (const part of root.querySelectorAll("[data-fragment]")) {
      // As in `replace`.
      source.addEventListener(part.dataset.fragment, (event) => {
        if (part.contains(document.activeElement)) return;
        part.innerHTML = event.data;
        if (health) health.show();
      });
    }
  };
  note(false);
  open();
  document.addEventListener("visibilitychange", () => (isVisible() ? open() : close()));
  addEventListener("pagehide", close);
}

function changeTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  document.cookie = `penstock_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
  if (charts) charts.redraw();
}

document.getElementById("theme").addEventListener("click", changeTheme);
const healthPlace = document.getElementById("health");
if (healthPlace) health = new Health(healthPlace.dataset.health);
for (const root of document.querySelectorAll("[data-live]")) follow(root);
addEventListener("submit", (event) => {
  const button = event.target.querySelector("button[data-busy]");
  if (button) { button.textContent = button.dataset.busy; button.disabled = true; }
});
addEventListener("change", (event) => {
  if (!event.target.matches("select[data-choices]")) return;
  const { unit, default: otherwise, value, doc } = event.target.selectedOptions[0].dataset;
  const form = event.target.closest("form");
  form.querySelector("[data-choice]").textContent = `${doc} Unit: ${unit}. Default: ${otherwise || "none"}. Now: ${value || "not set"}.`.trim();
});
// A skeleton is replaced by the page, also by one that says what went wrong.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.id === "main") {
    event.detail.shouldSwap = true;
    event.detail.isError = false;
  } else if (event.detail.xhr.responseText.includes("data-pending")) event.detail.shouldSwap = false;
});
document.addEventListener("htmx:afterSettle", (event) => {
  if (event.detail.target.id === "main") for (const root of document.querySelectorAll("#main [data-live]")) follow(root);
  if (health) health.show();
});
// Requests of a page that nobody sees wait until it is visible. A skeleton is completed, though.
const held = new Set();
document.addEventListener("htmx:beforeRequest", (event) => {
  if (isVisible() || event.detail.elt.matches("[data-pending]")) return;
  event.preventDefault();
  held.add(event.detail.elt);
});
document.addEventListener("visibilitychange", () => {
  if (!isVisible()) return;
  for (const place of held) if (place.isConnected) htmx.ajax("GET", place.getAttribute("hx-get"), { source: place });
  held.clear();
});
// "/" goes to the search field of the page, as on many sites.
addEventListener("keydown", (event) => {
  const field = document.querySelector("input[type=search]");
  if (event.key !== "/" || !field || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  field.focus();
});
