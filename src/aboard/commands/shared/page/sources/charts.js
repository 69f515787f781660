/* Charts of one look and one behaviour: a shared cursor, a shared zoom, and marks for what happened. */

const AXIS_WIDTH = 62;
const DARK = window.matchMedia("(prefers-color-scheme: dark)");
let printing = false;
const charts = [];

function isDark() {
  return DARK.matches && !printing;
}

/* Okabe and Ito's colours, which colour-blind people can tell apart; brighter on dark ground. */
function pickColor(number) {
  const light = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#b8860b", "#56b4e9", "#444444", "#882255"];
  const dark = ["#56a8e8", "#f0843c", "#2fc79b", "#d886c8", "#e6c229", "#9ad1f5", "#bbbbbb", "#d0668f"];
  return (isDark() ? dark : light)[number % 8];
}

function readColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/* A panel with a title, a chart, and the values under the cursor. */
function addChart(parent, chart) {
  const values = make("output", { class: "values" });
  const canvas = make("div", { class: "plot", tabindex: 0, role: "img", "aria-label": describeChart(chart) });
  const heading = make("h3", {}, chart.title, chart.unit ? make("span", { class: "unit" }, chart.unit) : "");
  parent.append(make("section", { class: `panel ${chart.wide ? "wide" : ""}` },
    make("header", {}, heading, values), canvas, chart.note ? make("p", { class: "note" }, chart.note) : ""));
  const entry = { ...chart, canvas, values, plot: null };
  charts.push(entry);
  draw(entry);
  new ResizeObserver(() => resize(entry)).observe(canvas);
  canvas.addEventListener("keydown", (event) => moveCursor(entry, event));
  return entry;
}

function describeChart(chart) {
  const parts = (chart.series || []).filter((each) => each.name && !each.quiet).map((each, place) => {
    const values = chart.data(chart)[place + 1] || [];
    const known = values.filter((value) => value !== null && value !== undefined);
    if (!known.length) return each.name;
    const [low, high] = [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))];
    return `${each.name} from ${chart.format(low)} to ${chart.format(high)}, at last ${chart.format(known[known.length - 1])}`;
  });
  return `${chart.title}: ${parts.slice(0, 8).join("; ")}`;
}

function draw(entry) {
  if (entry.plot) entry.plot.destroy();
  const width = Math.max(200, entry.canvas.clientWidth);
  entry.plot = new uPlot(buildOptions(entry, width), entry.data(entry), entry.canvas);
}

function redraw(key) {
  for (const entry of charts) if (!key || entry.switches) draw(entry);
}

function resize(entry) {
  const width = entry.canvas.clientWidth;
  if (width && entry.plot && width !== entry.plot.width) entry.plot.setSize({ width, height: entry.plot.height });
}

function getKey(entry) {
  return entry.switches ? view.axis : "time";
}

function buildOptions(entry, width) {
  const key = getKey(entry);
  const [low, high] = view.zoom[key] || view.whole[key];
  const font = '11px system-ui, "Segoe UI", Roboto, sans-serif';
  const axis = { stroke: readColor("muted"), font, ticks: { stroke: readColor("grid"), size: 4, width: 1 }, gap: 4 };
  const grid = { stroke: readColor("grid"), width: 1 };
  const unit = nameTimeUnit(high - low);
  return {
    width,
    height: entry.height || 210,
    padding: [14, 12, 0, 0],
    legend: { show: false },
    focus: { alpha: 0.35 },
    cursor: {
      sync: { key, setSeries: false },
      drag: { x: true, y: false, setScale: false },
      points: { size: 6 },
      focus: { prox: (entry.series || []).length > 2 ? 24 : -1 },
      bind: { dblclick: () => () => (setZoom(key, null), null) },
    },
    scales: {
      x: { time: false, range: () => view.zoom[key] || view.whole[key] },
      y: { range: entry.range || ((plot, from, to) => padRange(from, to, entry)), distr: entry.log ? 3 : 1 },
    },
    axes: [
      {
        ...axis, grid: { show: false }, size: 34, space: 70, label: key === "time" ? `time since the start (${TIME_UNITS[unit].label})` : "step",
        labelSize: 14, labelFont: font, labelGap: 0,
        ...(key === "time" ? { incrs: TIME_STEPS } : {}),
        values: (plot, splits) => splits.map((at) => (key === "time" ? formatTick(at, unit) : formatAmount(at))),
      },
      {
        ...axis, grid: entry.log ? { ...grid, filter: keepDecades } : grid, size: AXIS_WIDTH, space: 34,
        ...(entry.log ? { filter: keepDecades } : {}),
        values: (plot, splits) => splits.map((value) => (value === null ? "" : (entry.tick || entry.format)(value))),
        ...(entry.axis || {}),
      },
    ],
    series: [{}, ...entry.series.map((each) => describeSeries(each))],
    hooks: {
      drawClear: [(plot) => entry.paint && entry.paint(plot)],
      draw: [(plot) => drawMarks(plot, entry, key)],
      setCursor: [(plot) => showValues(plot, entry, key)],
      setSelect: [(plot) => selectRange(plot, key)],
    },
  };
}

function describeSeries(each) {
  const color = typeof each.color === "number" ? pickColor(each.color) : readColor(each.color);
  return {
    label: each.name,
    stroke: each.pale ? `${color}66` : color,
    width: each.width || (each.pale ? 1 : 1.4),
    points: { show: Boolean(each.points), size: 5, fill: color },
    spanGaps: false,
    ...(each.hidden ? { paths: () => null, points: { show: false } } : {}),
  };
}

function keepDecades(plot, splits) {
  return splits.map((value) => (value && Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6) ? value : null));
}

function padRange(low, high, { floor, log }) {
  if (low === null || low === undefined || high === null) return [0, 1];
  if (log) return uPlot.rangeLog(low, high, 10, false);
  if (floor === 0 && low >= 0) return [0, high > 0 ? high * 1.08 : 1];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

/* Checkpoints below, restarts as dashed lines, verdicts as numbers on top: on every chart the same. */
function drawMarks(plot, entry, key) {
  const { ctx } = plot;
  const scale = devicePixelRatio;
  const { left, top, width, height } = plot.bbox;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left - 8 * scale, 0, width + 16 * scale, top + height + 2 * scale);
  ctx.clip();
  for (const mark of entry.marks === false ? [] : view.marks) {
    const value = key === "time" ? mark.x : mark.step;
    if (value === null || value === undefined) continue;
    const x = Math.round(plot.valToPos(value, "x", true));
    if (x < left - 1 || x > left + width + 1) continue;
    if (mark.kind === "checkpoint" && entry.switches) drawTriangle(ctx, x, top + height, 3.5 * scale);
    else if (mark.kind === "restart") drawLine(ctx, x, top, height, "restart", [4 * scale, 3 * scale], scale);
    else if (mark.kind === "verdict") drawFlag(ctx, mark, x, top, height, scale);
  }
  ctx.restore();
}

function drawTriangle(ctx, x, y, size) {
  ctx.fillStyle = readColor("muted");
  ctx.beginPath();
  ctx.moveTo(x - size, y);
  ctx.lineTo(x + size, y);
  ctx.lineTo(x, y - 1.8 * size);
  ctx.fill();
}

function drawLine(ctx, x, top, height, color, dash, scale) {
  ctx.strokeStyle = readColor(color);
  ctx.lineWidth = scale;
  ctx.setLineDash(dash);
  ctx.beginPath();
  ctx.moveTo(x + 0.5, top);
  ctx.lineTo(x + 0.5, top + height);
  ctx.stroke();
  ctx.setLineDash([]);
}

function drawFlag(ctx, mark, x, top, height, scale) {
  drawLine(ctx, x, top, height, mark.severity, [], mark.number === view.chosen ? 2.5 * scale : scale);
  ctx.fillStyle = readColor(mark.severity);
  ctx.beginPath();
  ctx.arc(x, 7 * scale, 6.5 * scale, 0, 2 * Math.PI);
  ctx.fill();
  ctx.fillStyle = readColor("ground");
  ctx.font = `bold ${9.5 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(String(mark.number), x, 7.5 * scale);
}

function showValues(plot, entry, key) {
  const { idx, left } = plot.cursor;
  if (left === null || left < 0) {
    entry.values.textContent = entry.rest || "";
    return;
  }
  const at = plot.posToVal(left, "x");
  const where = key === "time" ? formatDuration(Math.max(0, at)) : `step ${formatCount(at)}`;
  if (entry.read) {
    entry.values.textContent = `${where} · ${entry.read(plot, at)}`;
    return;
  }
  const shown = [];
  plot.series.forEach((series, place) => {
    const value = place && !entry.series[place - 1].quiet ? findNear(plot, place, idx) : null;
    if (value !== null && value !== undefined && shown.length < 6) {
      shown.push(plot.series.length > 2 ? `${series.label} ${entry.format(value)}` : entry.format(value));
    }
  });
  entry.values.textContent = shown.length ? `${where} · ${shown.join(" · ")}` : where;
}

/* Curves of several sources share one axis, so that most have no value at exactly one place of it. */
function findNear(plot, place, idx) {
  const values = plot.data[place];
  for (let step = 0; idx !== null && step < 40; step += 1) {
    for (const near of [idx - step, idx + step]) {
      if (values[near] !== null && values[near] !== undefined) return values[near];
    }
  }
  return null;
}

function moveCursor(entry, event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "Escape") setZoom(getKey(entry), null);
  if (!step) return;
  event.preventDefault();
  const { plot } = entry;
  const width = plot.over.clientWidth;
  const before = plot.cursor.left === null || plot.cursor.left < 0 ? width / 2 : plot.cursor.left;
  const left = Math.min(width, Math.max(0, before + step * (event.shiftKey ? width / 20 : width / 100)));
  plot.setCursor({ left, top: plot.over.clientHeight / 2 });
}

function selectRange(plot, key) {
  const { left, width } = plot.select;
  if (width < 4) return;
  const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
  plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  setZoom(key, range);
}

function setZoom(key, range) {
  view.zoom[key] = range;
  for (const entry of charts) if (getKey(entry) === key) draw(entry);
  document.getElementById("unzoom").hidden = !Object.values(view.zoom).some(Boolean);
}
