/* Rows × time as colours, and time as stacked columns: both are charts, so that they share axes, cursor and zoom. */

/* Cividis: it reads the same with and without colour vision, and gets lighter evenly. */
const CIVIDIS = [
  [0, 34, 78], [8, 51, 112], [53, 69, 108], [79, 87, 108], [102, 105, 112], [125, 124, 120], [148, 142, 119],
  [174, 163, 113], [200, 184, 102], [229, 207, 82], [254, 232, 56],
];

function mapColor(share) {
  const place = Math.min(1, Math.max(0, share)) * (CIVIDIS.length - 1);
  const low = Math.floor(place);
  const high = Math.min(CIVIDIS.length - 1, low + 1);
  return CIVIDIS[low].map((value, part) => value + (CIVIDIS[high][part] - value) * (place - low));
}

/* Unless it is linear, drawn on a scale on which small values still differ. */
function scaleValue(value, { most, linear }) {
  const share = Math.max(0, value) / most;
  return linear ? share : Math.sqrt(share);
}

/* `map` has columns, rows, start and width of a column in seconds, and `read(row, column)`: null if unknown. */
function addHeatMap(parent, map) {
  const stop = map.start + map.columns * map.width;
  const labels = Array.from({ length: map.rows }, (_, row) => map.label(row).slice(0, 16));
  const height = Math.min(560, Math.max(110, map.rows * Math.max(1, Math.floor(300 / map.rows)))) + 48;
  addChart(parent, {
    title: map.title,
    wide: !map.linear,
    note: map.note,
    height,
    marks: map.marks,
    range: () => [0, map.rows],
    data: () => [[map.start, stop], [null, null]],
    series: [{ name: map.title, color: "muted", hidden: true, quiet: true }],
    format: map.format,
    axis: {
      grid: { show: false },
      incrs: [1, 2, 4, 8, 16, 32, 64, 128, 256],
      space: 16,
      splits: (plot, axis, low, high, incr) => {
        const step = Math.max(1, incr);
        return Array.from({ length: Math.ceil(map.rows / step) }, (_, place) => map.rows - place * step - 0.5);
      },
      size: Math.max(AXIS_WIDTH, 14 + 6.5 * Math.max(...labels.map((label) => label.length))),
      values: (plot, splits) => splits.map((split) => labels[map.rows - split - 0.5]),
    },
    paint: (plot) => paintMap(plot, map, stop),
    read: (plot, at) => {
      const row = Math.floor(map.rows - plot.posToVal(plot.cursor.top, "y"));
      const column = Math.floor((at - map.start) / map.width);
      if (row < 0 || row >= map.rows || column < 0 || column >= map.columns) return "";
      const value = map.read(row, column);
      return `${labels[row]}: ${value === null ? "not measured" : map.format(value)}`;
    },
    rest: "",
  });
  parent.lastChild.append(describeColors(map));
}

function paintMap(plot, map, stop) {
  const { ctx, bbox } = plot;
  const [from, to] = [plot.valToPos(map.start, "x", true), plot.valToPos(stop, "x", true)];
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.fillStyle = readColor("unknown");
  ctx.fill();
  ctx.clip();
  ctx.imageSmoothingEnabled = false;
  const together = Math.ceil(map.columns / (to - from));
  const image = buildImage(map, together);
  ctx.drawImage(image, from, bbox.top, ((to - from) * image.width * together) / map.columns, bbox.height);
  for (const box of map.boxes || []) drawBox(plot, map, box);
  ctx.restore();
}

/* Around what a text beside the map is about, since a row of hundreds is a pixel high. */
function drawBox(plot, map, { row, start, stop, label }) {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  const height = bbox.height / map.rows;
  const around = Math.max(0, (9 * scale - height) / 2);
  const [left, right] = [start, stop].map((at) => plot.valToPos(at, "x", true));
  const [x, y] = [left - around, bbox.top + row * height - around];
  ctx.strokeStyle = "#ff6f61";
  ctx.lineWidth = 2 * scale;
  ctx.strokeRect(x, y, right - left + 2 * around, height + 2 * around);
  ctx.font = `bold ${11 * scale}px system-ui, sans-serif`;
  const room = ctx.measureText(label).width + 8 * scale;
  const beside = right + around + 2 * scale;
  const from = beside + room < bbox.left + bbox.width ? beside : Math.max(bbox.left, x - room - 2 * scale);
  ctx.fillStyle = "#00224e";
  ctx.fillRect(from, y + height / 2 + around - 8 * scale, room, 16 * scale);
  ctx.fillStyle = "#ffffff";
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  ctx.fillText(label, from + 4 * scale, y + height / 2 + around);
}

/* Where several columns share a pixel, it shows the highest value of them. */
function buildImage(map, together) {
  const image = document.createElement("canvas");
  image.width = Math.ceil(map.columns / together);
  image.height = map.rows;
  const context = image.getContext("2d");
  const pixels = context.createImageData(image.width, map.rows);
  for (let row = 0; row < map.rows; row += 1) {
    for (let column = 0; column < map.columns; column += 1) {
      const value = map.read(row, column);
      const place = (row * image.width + Math.floor(column / together)) * 4;
      const color = value === null ? null : mapColor(scaleValue(value, map));
      // Colours of the map get lighter evenly.
      if (color && (!pixels.data[place + 3] || color[1] > pixels.data[place + 1])) pixels.data.set([...color, 255], place);
    }
  }
  context.putImageData(pixels, 0, 0);
  return image;
}

function describeColors(map) {
  const bar = make("canvas", { class: "colors", width: 160, height: 10, "aria-hidden": "true" });
  const context = bar.getContext("2d");
  for (let x = 0; x < 160; x += 1) {
    context.fillStyle = `rgb(${mapColor(x / 159).map(Math.round).join(",")})`;
    context.fillRect(x, 0, 1, 10);
  }
  return make("p", { class: "legend" },
    map.format(0), bar, map.format(map.most),
    make("span", { class: "key" }, make("span", { class: "swatch unknown" }), "not measured"), make("span", { class: "unit" }, map.unit));
}

/* The classes of a run's time, in the order in which they are stacked: work first, then what it cost. */
const CLASSES = [
  ["forward_backward", "forward + backward", "#0072b2", "#3d8fd1"],
  ["steps", "steps, not measured in detail", "#4a90c4", "#5fa3d6"],
  ["communication", "communication", "#56b4e9", "#8fd0f5"],
  ["optimizer", "optimizer", "#009e73", "#1fb78c"],
  ["data", "waiting for data", "#7fbf7b", "#8fd18b"],
  ["evaluation", "evaluation", "#b8a9d9", "#b8a9d9"],
  ["checkpoint", "checkpoint", "#8064a2", "#9b7fc0"],
  ["other", "other", "#9aa0a6", "#7d848c"],
  ["compile", "compiling", "#d9b08c", "#c99b72"],
  ["loading", "loading", "#e6c067", "#d4ab4a"],
  ["starting", "starting", "#f0d9a0", "#a8904f"],
  ["repeated", "repeated steps", "#e58b4a", "#e58b4a"],
  ["waiting", "waiting to restart", "#d9663a", "#d9663a"],
  ["detection", "detecting a failure", "#b3261e", "#e0483f"],
  ["stopping", "stopping", "#7a1f3d", "#a83a61"],
];

function listClasses(ledger) {
  return CLASSES.filter(([kind]) => ledger.total[kind] > 0)
    .map(([kind, name, light, dark]) => ({ kind, name, color: isDark() ? dark : light, seconds: ledger.total[kind] }));
}

function addLedgerChart(parent, ledger, began) {
  const start = ledger.start - began;
  const count = Object.values(ledger.over)[0].length;
  const stop = start + count * ledger.width;
  addChart(parent, {
    title: "Over time",
    wide: true,
    height: 190,
    range: () => [0, 1],
    data: () => [[start, stop], [null, null]],
    series: [{ name: "share of time", color: "muted", hidden: true, quiet: true }],
    format: formatShare,
    paint: (plot) => paintStack(plot, ledger, start),
    read: (plot, at) => {
      const column = Math.floor((at - start) / ledger.width);
      return listClasses(ledger).map((each) => [each.name, ledger.over[each.kind][column] / ledger.width])
        .filter(([, share]) => share >= 0.005).sort((a, b) => b[1] - a[1]).slice(0, 4)
        .map(([name, share]) => `${name} ${formatShare(share)}`).join(", ");
    },
  });
}

function paintStack(plot, ledger, start) {
  const { ctx } = plot;
  const classes = listClasses(ledger);
  const count = ledger.over[classes[0].kind].length;
  ctx.save();
  ctx.beginPath();
  ctx.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
  ctx.clip();
  for (let column = 0; column < count; column += 1) {
    const from = Math.floor(plot.valToPos(start + column * ledger.width, "x", true));
    const to = Math.ceil(plot.valToPos(start + (column + 1) * ledger.width, "x", true));
    let below = 0;
    for (const { kind, color } of classes) {
      const share = ledger.over[kind][column] / ledger.width;
      if (!share) continue;
      const [bottom, top] = [plot.valToPos(below, "y", true), plot.valToPos(below + share, "y", true)];
      ctx.fillStyle = color;
      ctx.fillRect(from, Math.floor(top), to - from, Math.ceil(bottom - top) + 1);
      below += share;
    }
  }
  ctx.restore();
}
