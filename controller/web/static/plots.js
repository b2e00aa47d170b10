// The use of a run's jobs over time, from the history that the controller keeps.

import { ask } from "./asking.js";
import { now } from "./clock.js";
import { offer, whenJobsChange } from "./run.js";

let uPlot = null;
const GIB = 2 ** 30;
const KINDS = [
  { name: "cpu", title: "CPU cores", scale: 1 },
  { name: "memory", title: "Memory GiB", scale: GIB },
  { name: "gpu_utilization", title: "GPU %", scale: 1 },
  { name: "gpu_memory", title: "GPU memory GiB", scale: GIB },
];
const COLOURS = ["#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#9a6700", "#1b7c83", "#57606a"];
const DASHES = [[], [6, 3], [2, 2]];
const AGAIN = 15000;
// Times as the reader writes them: below the axis, by the step between two of them, and exactly.
const SECONDS = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const MINUTES = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const DAYS = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "numeric" });
const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

class Plots {
  constructor(root) {
    this.root = root;
    this.part = (name) => root.querySelector(`[data-plots-part="${name}"]`);
    this.made = [];
    this.part("span").addEventListener("change", () => this.refresh());
    this.part("of").addEventListener("change", () => this.refresh());
    whenJobsChange((jobs) => this.offerAttempts(jobs));
    new ResizeObserver(() => this.resize()).observe(this.part("plots"));
    setInterval(() => document.hidden || this.asking || this.refresh(), AGAIN);
    const redraw = () => this.made.forEach((plot) => plot.redraw(false));
    document.addEventListener("fairlead:theme", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    this.refresh();
  }

  // All jobs at once, each with its latest attempt, or one attempt with each of its GPUs.
  offerAttempts(jobs) {
    const every = jobs.flatMap((job) =>
      job.attempts.map((one) => new Option(`${job.label}, attempt ${one.number} (${one.state})`, one.id)),
    );
    offer(this.part("of"), [new Option("all jobs", ""), ...every]);
    this.only = every.length === 1 ? every[0].value : "";
  }

  async refresh() {
    // Another choice of the reader: the answer to the one before could come after this one's.
    this.asking?.abort();
    const asking = new AbortController();
    this.asking = asking;
    const seconds = this.part("span").value;
    const attempt = this.part("of").value || this.only;
    try {
      const path = `runs/${this.root.dataset.run}/metrics/history`;
      const query = { seconds, points: 240, ...(attempt ? { attempt, gpus: true } : {}) };
      const { jobs, until } = await ask(path, query, asking.signal);
      this.end = (until ? Date.parse(until) : now()) / 1000;
      const each = jobs.flatMap(({ gpus, ...job }) => [job, ...(gpus ?? []).map((gpu, at) => asJob(gpu, at))]);
      this.draw(each.filter((job) => job.points.length));
    } catch (error) {
      if (!asking.signal.aborted) this.part("status").textContent = error.message;
    } finally {
      if (this.asking === asking) this.asking = null;
    }
  }

  draw(jobs) {
    const times = [...new Set(jobs.flatMap((job) => job.points.map((point) => seconds(point))))];
    times.sort((one, other) => one - other);
    const kinds = KINDS.filter((kind) => jobs.some((job) => has(job, kind)));
    const shape = JSON.stringify([kinds.map((kind) => kind.name), jobs.map(label)]);
    if (shape !== this.shape) this.make(kinds, jobs);
    this.shape = shape;
    this.part("status").textContent = kinds.length ? "" : "Nothing was measured in this time.";
    kinds.forEach((kind, at) => {
      const series = jobs.map((job) => {
        const values = new Map(job.points.map((point) => [seconds(point), point[kind.name]]));
        return times.map((time) => scaled(values.get(time), kind));
      });
      this.made[at].setData([times, ...series]);
    });
    this.tell(jobs);
  }

  // From the beginning of the chosen time, or of what was measured in it, until now.
  span(first) {
    const begin = this.end - this.part("span").value;
    return [Math.max(begin, Math.min(first ?? begin, this.end - 60)), this.end];
  }

  make(kinds, jobs) {
    this.made.forEach((plot) => plot.destroy());
    this.part("plots").replaceChildren();
    this.made = kinds.map((kind) => {
      const box = document.createElement("div");
      box.className = "plot";
      const title = document.createElement("h3");
      title.textContent = kind.title;
      box.append(title);
      this.part("plots").append(box);
      const axis = { stroke: () => getComputedStyle(document.body).color, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
      const series = jobs.map((job, at) => ({
        label: label(job),
        stroke: COLOURS[at % COLOURS.length],
        dash: DASHES[Math.floor(at / COLOURS.length) % DASHES.length],
        spanGaps: true,
        show: has(job, kind),
        value: (_, value) => (value === null || value === undefined ? "–" : value.toFixed(2)),
      }));
      const options = { width: box.clientWidth || 400, height: 180, axes: [{ ...axis, space: 80, values: labels }, axis], scales: { x: { range: (plot) => this.span(plot.data[0][0]) }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), 1.1 * Math.max(high ?? 1, 0.01)] } }, series: [{ value: (_, at) => (at ? EXACT.format(at * 1000) : "–") }, ...series], legend: { show: jobs.length <= 8 } };
      return new uPlot(options, [[], ...jobs.map(() => [])], box);
    });
  }

  // The same for those who see no plots.
  tell(jobs) {
    const rows = jobs.map((job) => {
      const row = document.createElement("tr");
      const last = job.points.at(-1);
      for (const text of [label(job), ...KINDS.map((kind) => scaled(last[kind.name], kind)?.toFixed(2) ?? "–")]) {
        const cell = document.createElement("td");
        cell.textContent = text;
        if (row.firstChild) cell.className = "number";
        row.append(cell);
      }
      return row;
    });
    this.part("latest").replaceChildren(...rows);
  }

  resize() {
    for (const plot of this.made) {
      const width = plot.root.parentElement.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: 180 });
    }
  }
}

// Whether anything of this kind was measured of the job.
function has(job, { name }) {
  return job.points.some((point) => point[name] !== null);
}

function seconds(point) {
  return Math.round(Date.parse(point.at) / 1000);
}

function labels(plot, ticks, _axis, _space, step) {
  const { min, max } = plot.scales.x;
  const form = step < 60 ? SECONDS : max - min <= 86400 ? MINUTES : DAYS;
  return ticks.map((at) => form.format(at * 1000));
}

function label(job) {
  return job.gpu ?? `${job.group}/${job.cookie}`;
}

// A GPU is drawn beside its job, as one that has GPU values alone.
function asJob({ uuid, points }, at) {
  const shown = points.map(({ at, utilization, memory }) => ({
    at,
    cpu: null,
    memory: null,
    gpu_utilization: utilization,
    gpu_memory: memory,
  }));
  return { gpu: `GPU ${at} (${uuid})`, points: shown };
}

function scaled(value, kind) {
  return value === null || value === undefined ? null : value / kind.scale;
}

// The plots are below the log, and their library is large: both come when the reader comes near.
const near = new IntersectionObserver(async (seen) => {
  if (!seen.some((one) => one.isIntersecting)) return;
  near.disconnect();
  uPlot = (await import("./vendor/uPlot.esm.js")).default;
  for (const root of document.querySelectorAll("[data-plots]")) new Plots(root);
}, { rootMargin: "300px" });
for (const root of document.querySelectorAll("[data-plots]")) near.observe(root);
