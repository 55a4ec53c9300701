// The page of a State (internal/dashboard/state.go). It asks for a new one while the job runs, and
// draws all of it.
"use strict";

const kinds = [["memory", "pages"], ["lock", "locks"], ["barrier", "barriers"], ["reduction", "reductions"], ["prefetch", "prefetch"]];
const measures = [
  ["seconds", "time waited", c => c.seconds],
  ["faults", "faults", c => c.read + c.write + c.upgrade],
  ["read", "reads", c => c.read],
  ["write", "writes", c => c.write],
  ["upgrade", "upgrades", c => c.upgrade],
];
const ways = [
  ["sent", "who sends", "Row: the node that waits. Column: the node that has sent it the page, or the right to write it."],
  ["taken", "who has taken it before", "Row: the node that waits. Column: the node that had taken the page from it. What is large in both directions travels to and fro."],
];
const pollMillis = 500, retryMillis = 2000;
const chartHeight = 160, matrixHeight = 168;

let state = null;
let chosenRank = -1; // a place in state.by_rank; -1: all
let measure = measures[0];
let way = ways[0];
const dark = matchMedia("(prefers-color-scheme: dark)");

// Small things

const byID = id => document.getElementById(id);

/** make is a new element with attributes and children; text stays text. */
function make(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const count = n => n.toLocaleString("en");
const percent = x => (100 * x).toFixed(x < 0.0995 ? 1 : 0) + " %";
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

function time(seconds) {
  if (seconds >= 1) return seconds.toFixed(seconds < 10 ? 2 : 1) + " s";
  if (seconds >= 1e-3) return (seconds * 1e3).toPrecision(3) + " ms";
  return (seconds * 1e6).toPrecision(3).replace(/\.0+$/, "") + " µs";
}

function size(bytes) {
  const unit = Math.min(4, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  return Number((bytes / 1024 ** unit).toFixed(1)) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][unit];
}

// Cividis (Nuñez, Anderton and Renslow, 2018), which the colour-blind see as others do. Much is what
// stands out from the ground: yellow by night, and blue by day, when bright yellow would be too loud
// for little.
const cividis = ["00224e", "123570", "3b496c", "575d6d", "707173", "8a8678", "a59c74", "c3b369", "e1cc55", "fee838"]
  .map(hex => [0, 2, 4].map(i => parseInt(hex.slice(i, i + 2), 16)));

/** heat is the colour of x between 0 and 1, as [red, green, blue]. */
function heat(x) {
  const at = (dark.matches ? x : 0.8 * (1 - x)) * (cividis.length - 1);
  const i = Math.min(Math.floor(at), cividis.length - 2);
  return cividis[i].map((low, k) => Math.round(low + (cividis[i + 1][k] - low) * (at - i)));
}
const rgb = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
const onTop = ([r, g, b]) => 0.3 * r + 0.59 * g + 0.11 * b > 120 ? "#000" : "#fff";

/** logScale maps values from the smallest to the largest to 0..1, by their logarithm. */
function logScale(values) {
  const least = Math.min(...values), most = Math.max(...values);
  return { least, most, of: v => most > least ? Math.log(v / least) / Math.log(most / least) : 1 };
}

// The tip

function showTip(lines, x, y) {
  const tip = byID("tip");
  tip.replaceChildren(make("b", {}, lines[0]), ...lines.slice(1).map(line => make("span", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
  tip.style.top = (y + 16 + box.height > innerHeight ? y - box.height - 10 : y + 16) + "px";
}

function hideTip() { byID("tip").hidden = true; }

/**
 * Grid is cells in a canvas: values by colour, and what a cell is when one points at it or goes
 * there with the arrow keys.
 */
class Grid {
  constructor(label) {
    this.canvas = make("canvas", { class: "cells", tabindex: "0", role: "img", "aria-label": label });
    this.at = -1; // the cell that the tip is about
    this.canvas.addEventListener("mousemove", e => this.point(this.cellAt(e.offsetX, e.offsetY)));
    this.canvas.addEventListener("mouseleave", () => this.point(-1));
    this.canvas.addEventListener("blur", () => this.point(-1));
    this.canvas.addEventListener("keydown", e => this.key(e));
  }

  /**
   * draw draws cells, of which there are total in rows of columns. values maps a cell to its value,
   * names gives the lines of its tip; rowLabel and columnLabel label rows and columns, and print, if
   * there is one, has the text inside a cell.
   */
  draw({ total, columns, side, values, scale, names, rowLabel, columnLabel, print }) {
    Object.assign(this, { total, columns, side, names });
    const rows = Math.ceil(total / columns), ratio = devicePixelRatio || 1;
    const g = this.canvas.getContext("2d");
    const font = "11px system-ui, sans-serif";
    g.font = font;
    const labels = Array.from({ length: rows }, (_, r) => rowLabel(r));
    this.left = Math.ceil(Math.max(...labels.map(l => g.measureText(l).width))) + 8;
    this.top = columnLabel ? 16 : 0;
    const width = this.left + columns * side, height = this.top + rows * side;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.width = width + "px";
    this.canvas.style.height = height + "px";
    g.scale(ratio, ratio);
    g.font = font;
    g.textBaseline = "middle";
    const gap = side > 5 ? 1 : 0, empty = color("empty"), soft = color("soft");
    for (let i = 0; i < total; i++) {
      const x = this.left + (i % columns) * side, y = this.top + Math.floor(i / columns) * side, value = values.get(i);
      const fill = value ? heat(scale.of(value)) : null;
      g.fillStyle = fill ? rgb(fill) : empty;
      g.fillRect(x, y, side - gap, side - gap);
      if (fill && print && side >= 40) {
        g.fillStyle = onTop(fill);
        g.textAlign = "center";
        g.fillText(print(value), x + side / 2, y + side / 2);
      }
    }
    g.fillStyle = soft;
    g.textAlign = "right";
    const every = Math.ceil(14 / side); // labels must not touch each other
    labels.forEach((l, r) => { if (r % every === 0) g.fillText(l, this.left - 5, Math.min(this.top + r * side + Math.max(side, 11) / 2, height - 6)); });
    g.textAlign = "center";
    for (let c = 0; columnLabel && c < columns; c += Math.ceil(30 / side)) g.fillText(columnLabel(c), this.left + (c + 0.5) * side, 7);
    this.canvas.dataset.cells = values.size;
    if (this.at >= 0 && !byID("tip").hidden) this.point(this.at);
  }

  cellAt(x, y) {
    const column = Math.floor((x - this.left) / this.side), row = Math.floor((y - this.top) / this.side);
    const cell = row * this.columns + column;
    return column < 0 || column >= this.columns || row < 0 || cell >= this.total ? -1 : cell;
  }

  point(cell) {
    this.at = cell;
    if (cell < 0) return hideTip();
    const box = this.canvas.getBoundingClientRect();
    showTip(this.names(cell), box.left + this.left + (cell % this.columns + 0.5) * this.side, box.top + this.top + (Math.floor(cell / this.columns) + 0.5) * this.side);
  }

  key(e) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[e.key];
    if (e.key === "Escape") return this.point(-1);
    if (!step) return;
    e.preventDefault();
    const to = this.at < 0 ? 0 : this.at + step;
    if (to >= 0 && to < this.total) this.point(to);
  }
}

/** scaleLegend is what the colours of a heat map stand for. */
function scaleLegend(scale, text) {
  const width = scale.most > scale.least ? 120 : 12;
  const bar = make("canvas", { width, height: 10 });
  const g = bar.getContext("2d");
  for (let x = 0; x < width; x++) {
    g.fillStyle = rgb(heat(scale.most > scale.least ? x / (width - 1) : 1));
    g.fillRect(x, 0, 1, 10);
  }
  return make("div", { class: "scale" }, ...(scale.most > scale.least ? [text(scale.least)] : []), bar, text(scale.most));
}

/** choose fills an element with buttons, one for each option. */
function choose(where, options, current, onChoice) {
  where.replaceChildren(...options.map(option => {
    const b = make("button", { "aria-pressed": option === current }, option[1]);
    b.addEventListener("click", () => {
      onChoice(option);
      for (const other of where.children) other.setAttribute("aria-pressed", other === b);
      draw();
    });
    return b;
  }));
}

// The parts of the page

function drawHeader() {
  document.title = state.title + " – dsmd";
  byID("title").textContent = state.title;
  byID("status").textContent = `${state.running ? "running for" : "ended after"} ${time(state.seconds)} · ` +
    `${plural(state.nodes, "node")} · ${plural(state.ranks, "rank")} · ${plural(state.faults, "fault")}`;
  const notes = state.lost ? [`${plural(state.lost, "entry").replace("entrys", "entries")} of the log are missing, which came faster than they could be read, or while nobody read them: all counts below are too small.`] : [];
  for (const [is, text] of [["unreachable", "cannot be reached, and is asked again"], ["gone", "has ended: nothing new will come from there"]]) {
    const nodes = state.running ? (state.away || []).filter(a => a.is === is).map(a => a.node) : [];
    if (nodes.length) notes.push(`The daemon of ${nodes.length > 1 ? "each of the nodes" : "node"} ${nodes.join(", ")} ${text}.`);
  }
  say(notes.join(" "));
}

function say(text) {
  byID("note").textContent = text;
  byID("note").hidden = !text;
}

const ranksName = r => (r.count > 1 ? "ranks " : "rank ") + r.ranks;

function drawRanks() {
  const rows = state.by_rank.map((r, i) => [r, i, ranksName(r)]);
  const of = (r, kind) => state.seconds > 0 ? (r.waited[kind] || 0) / r.count / state.seconds : 0;
  const sum = r => kinds.reduce((s, [kind]) => s + of(r, kind), 0);
  const whole = Math.max(1, ...state.by_rank.map(sum));
  const where = byID("ranks");
  while (where.children.length < rows.length) {
    const i = where.children.length;
    const button = make("button", { class: "rank" }, make("span"), make("span", { class: "bar" }, ...kinds.map(([kind]) => make("span", { class: kind }))), make("b"));
    button.addEventListener("click", () => { chosenRank = chosenRank === i ? -1 : i; draw(); });
    where.append(button);
  }
  for (const [r, i, name] of rows) {
    const button = where.children[i], [label, bar, text] = button.children;
    label.textContent = name;
    text.textContent = percent(sum(r));
    kinds.forEach(([kind], k) => { bar.children[k].style.width = 100 * of(r, kind) / whole + "%"; });
    button.title = kinds.map(([kind, word]) => `${word} ${percent(of(r, kind))}`).join(", ") + `; ${plural(r.faults, "fault")}`;
    button.setAttribute("aria-pressed", i === chosenRank);
  }
}

/** shares has a list for each kind, of the chosen rank or on average of all. */
function shares() {
  const ranks = chosenRank < 0 ? state.by_rank : [state.by_rank[chosenRank]];
  const all = ranks.reduce((n, r) => n + r.count, 0);
  const length = Math.max(1, Math.ceil(state.seconds / state.bin_seconds));
  return kinds.map(([kind]) => Array.from({ length }, (_, t) =>
    ranks.reduce((s, r) => s + (r.shares[kind]?.[t] || 0) * r.count, 0) / all));
}

let chart = null, parts = [];

function drawChart() {
  byID("chart-hint").textContent = `${chosenRank < 0 ? "All ranks" : "R" + ranksName(state.by_rank[chosenRank]).slice(1)}: threads of a rank that wait, on average, in each ${time(state.bin_seconds)}.`;
  parts = shares();
  // An area lies in front of that of the sum so far, so the sum of all is drawn first.
  const sums = parts.map((_, k) => parts[0].map((_, t) => parts.slice(0, k + 1).reduce((s, p) => s + p[t], 0)));
  const data = [parts[0].map((_, t) => t * state.bin_seconds), ...sums.reverse()];
  if (chart) return chart.setData(data);
  const axis = { stroke: color("soft"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 }, font: "11px system-ui, sans-serif" };
  const backwards = kinds.map((_, i) => kinds.length - 1 - i);
  chart = new uPlot({
    width: byID("chart").clientWidth, height: chartHeight,
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(1, high)] } },
    axes: [{ ...axis, size: 28, values: (_, at) => at.map(x => x + " s") }, { ...axis, size: 40 }],
    series: [
      { label: "at", value: (_, v) => v === null ? "–" : v.toFixed(2) + " s" },
      ...backwards.map(k => ({
        label: kinds[k][1], stroke: color(kinds[k][0]), fill: color(kinds[k][0]), width: 0, points: { show: false },
        paths: uPlot.paths.stepped({ align: 1 }), value: (_, v, __, t) => v === null ? "–" : parts[k][t].toFixed(2),
      })),
    ],
  }, data, byID("chart"));
}

function drawCosts() {
  const rows = state.costs.map(c => {
    const name = make("td", { class: "name" }, c.name);
    if (c.at) name.append(make("small", {}, "the longest at " + c.at));
    const cells = [time(c.seconds), count(c.count), time(c.seconds / c.count), time(c.longest)].map(text => make("td", { class: "n" }, text));
    return make("tr", {}, make("td", {}, make("i", { class: c.kind }), c.kind), name, ...cells);
  });
  byID("costs").tBodies[0].replaceChildren(...rows.length ? rows : [make("tr", {}, make("td", { colspan: 6 }, "Nobody has waited yet."))]);
}

const matrix = new Grid("pages between nodes");

function drawMatrix() {
  byID("way-hint").textContent = way[2];
  const { nodes, [way[0]]: counts } = state.by_node, n = nodes.length;
  const values = new Map(counts.flat().map((v, i) => [i, v]).filter(([, v]) => v));
  const where = byID("matrix");
  if (values.size === 0) return where.replaceChildren(make("p", { class: "none" }, "No page so far."));
  const scale = logScale([...values.values()]);
  matrix.draw({
    total: n * n, columns: n, values, scale, print: count,
    side: Math.max(5, Math.min(48, Math.floor((where.clientWidth - 70) / n), Math.floor(matrixHeight / n))),
    rowLabel: r => "node " + nodes[r], columnLabel: c => nodes[c],
    names: cell => {
      const to = "node " + nodes[Math.floor(cell / n)], other = "node " + nodes[cell % n], v = plural(values.get(cell) || 0, "time");
      return way === ways[0] ? [`${other} → ${to}`, `${other} has sent a page, or the right to write it, ${v}`]
        : [`${other} takes from ${to}`, `${to} wanted a page again that ${other} had taken: ${v}`];
    },
  });
  if (!where.contains(matrix.canvas)) where.replaceChildren(matrix.canvas);
  where.replaceChildren(matrix.canvas, scaleLegend(scale, v => count(v)));
}

/** elements names what lies in some cells of an allocation, as counts[512..1023]. */
function elements(m, cell) {
  const begin = cell * m.cell_pages * m.page_bytes;
  const end = Math.min((cell + 1) * m.cell_pages, m.pages) * m.page_bytes;
  if (!m.elem_bytes) return `${m.name}, bytes ${begin}..${end - 1}`;
  const first = Math.floor(begin / m.elem_bytes), last = Math.floor((end - 1) / m.elem_bytes);
  return first === last ? `${m.name}[${first}]` : `${m.name}[${first}..${last}]`;
}

function cellTip(m, cell, c) {
  const first = cell * m.cell_pages, last = Math.min(first + m.cell_pages, m.pages) - 1;
  const lines = [elements(m, cell), (first === last ? `page ${count(first)}` : `pages ${count(first)} to ${count(last)}`) + ` of ${count(m.pages)}`];
  if (!c) return [...lines, "no fault"];
  lines.push(`${plural(c.read + c.write + c.upgrade, "fault")}: ${count(c.read)} to read, ${count(c.write)} to write, ${count(c.upgrade)} upgrades`);
  lines.push(`waited ${time(c.seconds)}`);
  const ranks = c.ranks.slice(0, 8).map(([r, n]) => `${ranksName(state.by_rank[r])}: ${count(n)}`);
  lines.push(ranks.join(", ") + (c.ranks.length > 8 ? `, and ${c.ranks.length - 8} more` : ""));
  return lines;
}

const maps = []; // {figure, caption, grid, legend} of each allocation

function drawMemory() {
  const where = byID("memory");
  while (maps.length < state.memory.length) {
    const m = { caption: make("figcaption"), grid: new Grid(""), legend: make("div") };
    m.figure = make("figure", {}, m.caption, m.grid.canvas, m.legend);
    maps.push(m);
  }
  const shown = maps.slice(0, state.memory.length).map(m => m.figure);
  if (shown.length !== where.querySelectorAll("figure").length) where.replaceChildren(...shown);
  if (shown.length === 0) where.replaceChildren(make("p", { class: "none" }, "No fault in shared memory so far."));
  state.memory.forEach((m, i) => drawMap(maps[i], m, where.clientWidth));
}

function drawMap({ caption, grid, legend }, m, width) {
  const per = m.cell_pages === 1 ? "" : `, ${m.cell_pages} to a cell`;
  caption.replaceChildren(
    make("code", {}, m.name + (m.type ? " []" + m.type : "")),
    make("span", {}, `${size(m.pages * m.page_bytes)}, ${plural(m.pages, "page")}${per}`),
    make("span", {}, `waited ${time(m.seconds)}`),
    make("span", {}, `${count(m.read)} reads, ${count(m.write)} writes, ${count(m.upgrade)} upgrades`));
  if (m.sites) caption.append(make("span", {}, "most at " + m.sites.map(s => `${s.at} (${s.write ? "store" : "load"})`).join(", ")));
  const cells = new Map(m.cells.map(c => [c.at, c]));
  const values = new Map(m.cells.map(c => [c.at, measure[2](c)]).filter(([, v]) => v));
  const total = Math.ceil(m.pages / m.cell_pages), columns = Math.min(total, 128);
  const scale = logScale([...values.values()]);
  grid.canvas.setAttribute("aria-label", `heat map of ${m.name} by ${measure[1]}`);
  grid.draw({
    total, columns, values, scale,
    side: Math.max(3, Math.min(total <= 32 ? 24 : 12, Math.floor((width - 90) / columns))),
    rowLabel: r => m.elem_bytes ? `[${Math.floor(r * columns * m.cell_pages * m.page_bytes / m.elem_bytes)}]` : size(r * columns * m.cell_pages * m.page_bytes),
    names: cell => cellTip(m, cell, cells.get(cell)),
  });
  const text = measure[0] === "seconds" ? v => time(v) : v => count(v);
  legend.replaceChildren(values.size ? scaleLegend(scale, text) : make("p", { class: "none" }, `No ${measure[1]} here.`));
}

/** party says what a node does with a page. */
function party(p) {
  const at = lines => (lines?.length ? ` (${lines.join(", ")})` : "");
  const who = p.ranks?.length ? (p.ranks.length > 1 ? "ranks " : "rank ") + p.ranks.join(", ") : `node ${p.node}`;
  const does = [p.writes && `writes ${p.writes}${at(p.write_at)}`, p.reads && `reads ${p.reads}${at(p.read_at)}`].filter(Boolean);
  return `${who} ${does.join(", ")}`;
}

/** drawSharing shows the result of package internal/runstats/sharing. */
function drawSharing() {
  const groups = state.sharing?.groups;
  byID("sharing").hidden = !groups;
  if (!groups) return;
  byID("sharing-report").replaceChildren(...groups.length ? groups.map(g => make("article", {},
    make("h3", {}, `${g.kind}: ${plural(g.pages, "page")} of ${g.memory || "memory that nobody knows"}`),
    make("p", { class: "hint" }, `${plural(g.faults, "fault")}, waited ${time(g.waited_ns / 1e9)}${g.pages > 1 ? `; for example page ${g.example}` : ""}`),
    make("ul", {}, ...(g.parties || []).slice(0, 8).map(p => make("li", {}, party(p))),
      ...(g.guards || []).map(x => make("li", {}, `lock ${x.lock} guards ${x.uses}`))),
    make("p", { class: "advice" }, g.advice))) : [make("p", { class: "none" }, "No page goes to and fro between nodes.")]);
}

function draw() {
  if (!state) return;
  for (const part of [drawHeader, drawRanks, drawChart, drawCosts, drawMatrix, drawMemory, drawSharing]) part();
}

/** poll asks for the state, and again soon as long as the job runs. */
async function poll() {
  try {
    const answer = await fetch("state.json");
    if (!answer.ok) throw new Error(await answer.text());
    state = await answer.json();
  } catch (err) {
    say(`No answer from dsmd (${err.message}). If the job has ended, this is what was last seen of it.`);
    return setTimeout(poll, retryMillis);
  }
  draw();
  if (state.running) setTimeout(poll, pollMillis);
}

byID("kinds").replaceChildren(...kinds.map(([kind, word]) => make("span", {}, make("i", { class: kind }), word)));
choose(byID("way"), ways, way, w => { way = w; });
choose(byID("measure"), measures, measure, m => { measure = m; });
dark.addEventListener("change", () => { chart?.destroy(); chart = null; draw(); });
new ResizeObserver(() => {
  chart?.setSize({ width: byID("chart").clientWidth, height: chartHeight });
  draw();
}).observe(byID("chart"));
poll();
