// Live parts of pages: server-sent events, charts, the theme. Pages work without this file, but stand still.
"use strict";

const POINTS_MAX = 450;

const CHARTS = {
  throughput: [(s) => s.bytes_in / 1e6, (s) => s.bytes_out / 1e6],
  latency: [(s) => s.append_p50_ms, (s) => s.append_p99_ms],
  records: [(s) => s.records],
  store: [(s) => s.put, (s) => s.get],
};

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
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
      scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 0.001) * 1.15] } },
      axes: [
        { ...axis(), size: 26, space: 90, values: (_, times) => times.map((t) => new Date(t * 1000).toTimeString().slice(0, 8)) },
        { ...axis(), size: 52, space: 34 },
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

function say(text, kind) {
  const place = document.getElementById("connection");
  if (!place || place.textContent === text) return;
  place.textContent = text;
  place.className = "chip" + (kind ? " " + kind : "");
}

let charts = null;

function follow(root) {
  if (root.querySelector("[data-chart]")) charts = new Charts(root);
  const source = new EventSource(root.dataset.live);
  source.addEventListener("open", () => say("live", "good"));
  source.addEventListener("error", () => say("not connected", "warn"));
  source.addEventListener("samples", (event) => charts && charts.set(JSON.parse(event.data)));
  source.addEventListener("sample", (event) => charts && charts.add(JSON.parse(event.data)));
  for (const part of root.querySelectorAll("[data-fragment]")) {
    // The server escapes every name in a fragment, and the page's policy allows no inline script.
    source.addEventListener(part.dataset.fragment, (event) => {
      if (!part.contains(document.activeElement)) part.innerHTML = event.data;
    });
  }
  addEventListener("pagehide", () => source.close());
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
for (const root of document.querySelectorAll("[data-live]")) follow(root);
for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", () => {
    const button = form.querySelector("button[data-busy]");
    if (button) { button.textContent = button.dataset.busy; button.disabled = true; }
  });
}
// "/" goes to the search field of the page, as on many sites.
addEventListener("keydown", (event) => {
  const field = document.querySelector("input[type=search]");
  if (event.key !== "/" || !field || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  field.focus();
});
