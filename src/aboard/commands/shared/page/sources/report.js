/* The page: its parts in order, for one run, for several, or for a check. */

const page = JSON.parse(document.getElementById("data").textContent);
const view = { axis: "time", zoom: {}, whole: { time: [0, 1], step: [0, 1] }, marks: [], chosen: null };

const CURVES = [
  { name: "loss", title: "Loss", format: formatPlain, wide: true, height: 280 },
  { name: "learning_rate", title: "Learning rate", format: formatPlain, floor: 0 },
  { name: "grad_norm", title: "Gradient norm", format: formatPlain, floor: 0 },
  { name: "tokens_per_second", title: "Tokens per second", format: formatAmount, floor: 0 },
  { name: "memory", title: "Memory of the largest rank", format: formatBytes, floor: 0, bytes: true },
  { name: "step_seconds", title: "Time per step", format: formatSeconds, floor: 0 },
  { name: "mfu", title: "Model FLOPS utilization", format: formatShare, floor: 0 },
];

const NODE_FIGURES = {
  load: { title: "Load", unit: "processes", format: formatPlain },
  memory: { title: "Memory used", format: formatShare },
  sent: { title: "Network sent", format: formatRate, bytes: true },
  received: { title: "Network received", format: formatRate, bytes: true },
  gpu: { title: "GPU utilization", unit: "mean of a node's GPUs", format: (value) => `${formatPlain(value)} %` },
  gpu_memory: { title: "GPU memory used", format: formatShare },
  power: { title: "GPU power", unit: "mean of a node's GPUs", format: (value) => `${formatPlain(value)} W` },
  temperature: { title: "GPU temperature", unit: "hottest of a node's GPUs", format: (value) => `${formatPlain(value)} °C` },
};

const RANK_FIGURES = {
  step: { title: "Steps done", format: formatCount },
  step_seconds: { title: "Time per step", format: formatSeconds },
  rss: { title: "Memory of ranks", format: formatBytes, bytes: true },
};

/* Above this many nodes or ranks, lines hide each other: they become rows of a heat map. */
const MOST_LINES = 8;

function addSection(title, note) {
  const section = make("section", { class: "part" }, make("h2", {}, title), note ? make("p", { class: "note" }, note) : "");
  document.getElementById("page").append(section);
  return section;
}

function addGrid(parent) {
  const grid = make("div", { class: "panels" });
  parent.append(grid);
  return grid;
}

function showRun(run) {
  const main = document.getElementById("page");
  run.verdicts.forEach((verdict, place) => { verdict.number = run.verdicts.length - place; });
  run.verdicts.reverse();
  view.whole = { time: [0, Math.max(1, run.until - run.began)], step: findStepRange([run]) };
  view.marks = listMarks(run);
  addTop(main, run);
  addVerdicts(main, run);
  main.append(buildToolbar(run));
  if (hasSteps(run)) addTraining([run]);
  else if (run.ranks && run.ranks.series.length) addRanks(run);
  if (run.ledger.over) addTimes(run);
  addLateness(run);
  if (run.samples && run.samples.series.length) addNodes(run);
  addLinks(run.links);
  if (run.output.length) addOutput(addSection("Last output"), run);
  addSettings(run);
}

function hasSteps(run) {
  return Boolean(run.metrics && run.metrics.step.length);
}

function findStepRange(runs) {
  const steps = runs.filter(hasSteps).flatMap((run) => [run.metrics.step[0], run.metrics.step[run.metrics.step.length - 1]]);
  const [low, high] = [Math.min(...steps), Math.max(...steps)];
  return steps.length ? [low, Math.max(low + 1, high)] : [0, 1];
}

function listMarks(run) {
  const find = (at) => findStep(run, at);
  return [
    ...run.checkpoints.map((each) => ({ kind: "checkpoint", x: each.at - run.began, step: each.step })),
    ...run.attempts.slice(1).map((each) => ({ kind: "restart", x: each.at - run.began, step: each.step })),
    ...run.verdicts.map((each) => ({
      kind: "verdict", x: each.at - run.began, step: each.step === null || each.step === undefined ? find(each.at) : each.step,
      number: each.number, severity: each.severity,
    })),
  ];
}

/* The step that was last logged at a time. */
function findStep(run, at) {
  if (!hasSteps(run)) return null;
  let found = null;
  run.metrics.at.forEach((time, place) => { if (time <= at) found = run.metrics.step[place]; });
  return found;
}

function choose(number) {
  view.chosen = view.chosen === number ? null : number;
  redraw();
  const mark = view.marks.find((each) => each.number === number);
  const first = charts[0];
  if (!first || view.chosen === null) return;
  first.canvas.scrollIntoView({ behavior: "smooth", block: "center" });
  const value = getKey(first) === "time" ? mark.x : mark.step;
  first.plot.setCursor({ left: first.plot.valToPos(value, "x"), top: 20 });
}

function buildToolbar(run) {
  const legend = make("span", { class: "keys" });
  if (run && run.checkpoints.length) legend.append(make("span", { class: "key checkpoint" }, "checkpoint"));
  if (run && run.metrics && run.metrics.evaluations.step.length) legend.append(make("span", { class: "key evaluation" }, "evaluation"));
  if (run && run.attempts.length > 1) legend.append(make("span", { class: "key restart" }, "restart"));
  if (run && run.metrics && run.metrics.lost.length) legend.append(make("span", { class: "key lost" }, "steps that were repeated later"));
  if (run && run.verdicts.length) legend.append(make("span", { class: "key moment" }, "verdict"));
  const buttons = ["time", "step"].map((axis) => make("button", {
    "aria-pressed": String(view.axis === axis), onclick: (event) => switchAxis(axis, event.target),
  }, axis === "time" ? "time" : "steps"));
  return make("nav", { class: "toolbar", "aria-label": "charts" },
    page.runs.some(hasSteps) ? make("span", { class: "switch", role: "group", "aria-label": "training charts over" }, buttons) : "",
    legend, make("button", { id: "unzoom", hidden: "", onclick: () => Object.keys(view.zoom).forEach((key) => setZoom(key, null)) }, "whole run"),
    make("span", { class: "hint" }, "drag to zoom"));
}

function switchAxis(axis, button) {
  view.axis = axis;
  for (const each of button.parentElement.children) each.setAttribute("aria-pressed", String(each === button));
  redraw("switches");
}

/* Curves of one metric: of one run with its lost steps and evaluations, or of several runs in colours of their own. */
function addTraining(runs) {
  const grid = addGrid(addSection("Training"));
  const several = runs.length > 1;
  const drawn = CURVES.map((curve) => ({ ...curve, tables: runs.flatMap((run, place) => listTables(run, curve, place, several)) }))
    .filter((curve) => curve.tables.some((table) => !table.pale));
  if (drawn.length % 2 === 0) drawn[drawn.length - 1].wide = true;
  for (const { tables, ...curve } of drawn) {
    const values = tables.flatMap((table) => table.values).filter((value) => value > 0);
    const [low, high] = [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), 0)];
    const log = (curve.name === "loss" || curve.name === "grad_norm") && high / low > 300 &&
      tables.every((table) => table.values.every((value) => value === null || value > 0));
    addChart(grid, {
      ...curve,
      log,
      unit: log ? "logarithmic" : "",
      switches: true,
      series: tables.map((table) => ({ name: table.name, color: table.color, pale: table.pale, points: table.points, quiet: table.pale })),
      // A gap reaches to the next values of its own curve, whatever others have in between.
      data: () => uPlot.join(tables.map((table) => [view.axis === "time" ? table.x : table.step, table.values]), tables.map(() => [0, 2])),
      axis: curve.bytes ? { incrs: BYTE_STEPS } : log ? { space: 20 } : {},
    });
  }
}

function listTables(run, curve, place, several) {
  if (!hasSteps(run)) return [];
  const { metrics } = run;
  const build = (source, values, more) => {
    const known = source.at.map((at, row) => row);
    return { step: known.map((row) => source.step[row]), x: known.map((row) => source.at[row] - run.began), values, ...more };
  };
  const tables = [];
  for (const lost of several ? [] : metrics.lost) {
    if (lost.columns[curve.name]) tables.push(build(lost, lost.columns[curve.name], { name: `attempt ${lost.attempt}`, color: 0, pale: true }));
  }
  if (metrics.columns[curve.name]) {
    tables.push(breakAtRestarts(build(metrics, metrics.columns[curve.name], { name: several ? run.id : curve.name, color: place }), metrics));
  }
  if (curve.name === "loss" && metrics.evaluations.step.length && !several) {
    const table = build(metrics.evaluations, metrics.evaluations.eval_loss, { name: "evaluation", color: 1, points: true });
    tables.push(breakAtRestarts(table, metrics.evaluations));
  }
  return tables;
}

/* Nothing was trained between two attempts: over time, the curve has a gap there. */
function breakAtRestarts(table, metrics) {
  const rows = [];
  table.x.forEach((x, row) => {
    if (row && metrics.generation[row] !== metrics.generation[row - 1]) rows.push([(x + table.x[row - 1]) / 2, (table.step[row] + table.step[row - 1]) / 2, null]);
    rows.push([x, table.step[row], table.values[row]]);
  });
  return { ...table, x: rows.map((row) => row[0]), step: rows.map((row) => row[1]), values: rows.map((row) => row[2]) };
}

function addRanks(run) {
  const grid = addGrid(addSection("Ranks", "The program reports no metrics that Aboard reads: this is what was seen of its ranks from outside."));
  addSourceCharts(grid, RANK_FIGURES, run.ranks.series.map((each) => ({ ...each, name: `rank ${each.rank}` })), run);
}

function addTimes(run) {
  const section = addSection("Where the time went", run.ledger.divided ? "" : "The time of steps is not divided further: only aboard train measures that.");
  addLedger(section, run);
  addLedgerChart(addGrid(section), run.ledger, run.began);
}

function addLateness(run) {
  const { lateness } = run;
  const section = addSection("Whom the others waited for");
  if (!lateness.measured) {
    section.append(make("p", { class: "note" }, `Not measured: ${lateness.why}.`));
    return;
  }
  const list = make("ul", { class: "words" });
  for (const each of lateness.slowest) {
    list.append(make("li", {}, make("strong", {}, `Rank ${each.rank} on ${each.node}`),
      ` from ${formatDuration(each.start - run.began)} to ${formatDuration(each.stop - run.began)}: ${each.text}.`));
  }
  section.append(lateness.slowest.length ? list : make("p", { class: "fine" }, "No rank stands out: none kept the others waiting for long, and much longer than the others did."));
  for (const line of lateness.unmeasured) section.append(make("p", { class: "note" }, `Not measured: ${line}.`));
  const rows = lateness.cells.map((row) => new DataView(Uint8Array.from(atob(row), (sign) => sign.charCodeAt(0)).buffer));
  const owners = new Map(run.nodes.flatMap((node) => node.ranks.map((rank) => [rank, node.name])));
  addHeatMap(addGrid(section), {
    title: "Waiting for each rank",
    unit: `mean wait per collective; clocks agree within ${formatSeconds(lateness.uncertainty)}`,
    columns: lateness.columns,
    rows: lateness.rows,
    start: lateness.start - run.began,
    width: lateness.width,
    most: lateness.most,
    boxes: lateness.slowest.map((each) => ({
      row: Math.floor((each.rank * lateness.rows) / lateness.ranks), start: each.start - run.began, stop: each.stop - run.began,
      label: `rank ${each.rank}`,
    })),
    format: formatSeconds,
    label: (row) => {
      const rank = Math.round((row * lateness.ranks) / lateness.rows);
      return `${rank} ${owners.get(rank) || ""}`;
    },
    read: (row, column) => {
      const value = rows[row].getUint16(2 * column, true);
      return value === 0xffff ? null : value * lateness.unit;
    },
  });
}

function addNodes(run) {
  const { samples } = run;
  const section = addSection("Nodes");
  if (samples.differences.length) section.append(make("ul", { class: "words" }, samples.differences.map((line) => make("li", {}, line))));
  else if (samples.series.length > 1) section.append(make("p", { class: "fine" }, "No node differs from the others in these figures."));
  addSourceCharts(addGrid(section), NODE_FIGURES, samples.series.map((each) => ({ ...each, name: each.node })), run);
}

/* One chart for each figure: a line for each source, or a row of a heat map if there are many. */
function addSourceCharts(grid, figures, sources, run) {
  const drawn = Object.keys(figures).filter((name) => sources.some((source) => source.figures[name] && source.figures[name].value.length));
  for (const [place, name] of drawn.entries()) {
    const figure = { ...figures[name], wide: drawn.length % 2 === 1 && place === drawn.length - 1 };
    const known = sources.filter((source) => source.figures[name] && source.figures[name].value.length);
    if (known.length > MOST_LINES) addSourceMap(grid, figure, known, name, run);
    else {
      addChart(grid, {
        ...figure,
        floor: 0,
        marks: true,
        series: known.map((source, place) => ({ name: source.name, color: place })),
        data: () => uPlot.join(known.map((source) => [source.figures[name].at.map((at) => at - run.began), source.figures[name].value])),
        axis: figure.bytes ? { incrs: BYTE_STEPS } : {},
      });
    }
  }
  if (sources.length > 1 && sources.length <= MOST_LINES) {
    const legend = sources.map((source, place) => {
      const swatch = make("span", { class: "swatch" });
      swatch.style.background = pickColor(place);
      return make("span", { class: "key" }, swatch, source.name);
    });
    grid.before(make("p", { class: "legend" }, legend));
  }
}

function addSourceMap(grid, figure, sources, name, run) {
  const columns = 300;
  const span = run.until - run.began;
  const width = span / columns;
  const cells = new Float64Array(sources.length * columns).fill(NaN);
  let most = 0;
  sources.forEach((source, row) => {
    const { at, value } = source.figures[name];
    at.forEach((time, place) => {
      const until = place + 1 < at.length ? at[place + 1] : time;
      const first = Math.floor((time - run.began) / width);
      const last = Math.min(Math.floor((until - run.began) / width), first + 10);
      for (let column = Math.max(0, first); column <= Math.min(columns - 1, last); column += 1) {
        const cell = row * columns + column;
        cells[cell] = Number.isNaN(cells[cell]) ? value[place] : Math.max(cells[cell], value[place]);
      }
      most = Math.max(most, value[place]);
    });
  });
  addHeatMap(grid, {
    title: figure.title, unit: "highest in each cell", linear: true, columns, rows: sources.length, start: 0, width, most: most || 1, format: figure.format,
    label: (row) => sources[row].name,
    read: (row, column) => (Number.isNaN(cells[row * columns + column]) ? null : cells[row * columns + column]),
  });
}

function addLinks(links) {
  const section = addSection("Links between nodes");
  if (!links || !links.measured) {
    section.append(make("p", { class: "note" }, `Not measured: ${(links && links.why) || "aboard check --report FILE measures every link"}.`));
    return;
  }
  const known = links.matrix.flat().filter((value) => value !== null).sort((a, b) => a - b);
  const usual = known[Math.floor(known.length / 2)];
  section.append(make("p", { class: "note" }, `From the node of the row to that of the column. Half of the links reach ${formatRate(usual)}; those below half of it are marked.`));
  addTable(section, ["from \\ to", ...links.nodes], links.nodes.map((node, row) => [
    node, ...links.matrix[row].map((value) => (value === null ? "" : make("span", { class: value < usual / 2 ? "low" : null }, formatRate(value))))]));
}

function addSettings(run) {
  const section = addSection("Settings");
  const details = make("details", {}, make("summary", {}, `${Object.keys(run.settings).length} settings, as they were recorded`));
  addTable(details, ["setting", "value"], Object.entries(run.settings));
  section.append(details);
  for (const line of [...run.dropped, ...run.unreadable.map((each) => `could not be read: ${each}`)]) section.append(make("p", { class: "note" }, line));
}

function addFooter() {
  const removed = Object.entries(page.removed || {}).map(([kind, count]) => `${formatCount(count)} × ${kind}`).join(", ");
  document.getElementById("page").append(make("footer", {},
    make("p", {}, "This file holds host names, paths, arguments, settings and output of the ranks. ",
      removed ? `Removed before it was written: ${removed}. ` : "", "Review it before you send it."),
    make("p", {}, `Made by aboard ${page.aboard} on ${formatDate(page.made)}. It loads nothing from a network. Charts: uPlot 1.6.32, MIT licence, © Leon Sorokin.`)));
}

if (page.check) showCheck(page.check);
else if (page.runs.length > 1) showComparison(page.runs);
else showRun(page.runs[0]);
addFooter();
DARK.addEventListener("change", () => redraw());
window.addEventListener("beforeprint", () => { printing = true; redraw(); });
window.addEventListener("afterprint", () => { printing = false; redraw(); });
