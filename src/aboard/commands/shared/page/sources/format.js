/* Elements and numbers. Texts of a record reach the page only as text nodes: nothing here parses HTML. */

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/* Text whose words in backticks are code. */
const formatCode = (text) => text.split(/`([^`\n]+)`/).map((part, place) => (place % 2 ? make("code", {}, part) : part));

const NUMBER = new Intl.NumberFormat("en-US");

function formatCount(value) {
  return value === null || value === undefined ? "–" : NUMBER.format(Math.round(value));
}

function formatAmount(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= unit) return `${trim((value / unit).toPrecision(3))} ${sign}`;
  }
  return formatPlain(value);
}

function formatPlain(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return trim(value.toExponential(2));
  return trim(value.toPrecision(4));
}

/* Without zeros that say nothing: 1.500 becomes 1.5, and 2.00e-3 becomes 2e-3. */
function trim(text) {
  return text.replace(/(\.\d*?)0+(e|$)/, "$1$2").replace(/\.(e|$)/, "$1").replace("e+", "e");
}

function formatBytes(value) {
  if (value === null || value === undefined) return "–";
  let [amount, place] = [Math.abs(value), 0];
  for (; amount >= 1023.5 && place < 4; place += 1) amount /= 1024;
  const digits = trim(amount < 10 ? amount.toFixed(1) : amount.toFixed(0));
  return `${value < 0 ? "-" : ""}${digits} ${["B", "KiB", "MiB", "GiB", "TiB"][place]}`;
}

function formatRate(value) {
  return value === null || value === undefined ? "–" : `${formatBytes(value)}/s`;
}

/* Ticks of an axis of bytes: 1, 2, 4, … of each unit. */
const BYTE_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power);

function formatShare(value) {
  if (value === null || value === undefined) return "–";
  const percent = value * 100;
  return `${percent !== 0 && percent < 10 ? trim(percent.toFixed(1)) : percent.toFixed(0)} %`;
}

function formatSeconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 1e-3) return `${Number((value * 1e6).toPrecision(2))} µs`;
  if (value < 1) return `${trim((value * 1e3).toPrecision(3))} ms`;
  return formatDuration(value);
}

/* At most two units, as in Aboard's other texts: 4.1 s, 42 s, 3 min 12 s, 2 h 5 min, 3 d 4 h. */
function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (Math.round(seconds * 10) < 100) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  for (const [size, name, below, small] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / below);
      return `${Math.floor(whole / size)} ${name}${rest ? ` ${rest} ${small}` : ""}`;
    }
  }
  return `${whole} s`;
}

function formatDate(at) {
  const date = new Date(at * 1000);
  const pad = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/* Ticks of a time axis, in one unit that its label names. */
const TIME_STEPS = [
  0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
  86400, 172800, 345600, 604800, 1209600, 2592000,
];

/* By unit: its seconds, and those of what follows the colon. */
const TIME_UNITS = {
  s: { size: 1, label: "s" },
  min: { size: 60, rest: 1, label: "min:s" },
  h: { size: 3600, rest: 60, label: "h:min" },
  d: { size: 86400, label: "days" },
};

function nameTimeUnit(span) {
  return span <= 90 ? "s" : span <= 5400 ? "min" : span <= 172800 ? "h" : "d";
}

function formatTick(seconds, unit) {
  const { size, rest } = TIME_UNITS[unit];
  if (!rest) return trim((seconds / size).toFixed(2));
  const parts = Math.round(seconds / rest);
  return `${Math.floor((parts * rest) / size)}:${String(parts % (size / rest)).padStart(2, "0")}`;
}

function formatNames(names, most) {
  const shown = names.slice(0, most || 4).join(", ");
  return names.length > (most || 4) ? `${shown} and ${names.length - (most || 4)} more` : shown;
}
