/* What is read rather than looked at: the top of the page, verdicts, tables, output. */

const STATES = { finished: "good", running: "active", pending: "active", stopped: "warn" };

function addTop(parent, run) {
  const last = lastOf(run.metrics && run.metrics.columns.loss);
  const restarts = Math.max(0, run.attempts.length - 1);
  const steps = run.step === null ? "–" : formatCount(run.step);
  const speed = run.metrics && medianOf(run.metrics.columns.tokens_per_second);
  parent.append(
    make("header", { class: "top" },
      make("h1", {}, run.id, make("span", { class: `pill ${STATES[run.state] || "bad"}` }, run.state)),
      make("p", { class: "what" }, describeRun(run)),
      run.note ? make("p", { class: "note" }, run.note) : "",
      make("dl", { class: "tiles" },
        addTile("duration", formatDuration(run.until - run.began), `from ${formatDate(run.began)}`),
        addTile("step", steps, run.steps ? `of ${formatCount(run.steps)}` : ""),
        addTile("goodput", run.goodput === null ? "–" : formatShare(run.goodput), run.goodput !== null ? "new steps × their median time" : run.training ? "not known" : "not known for scripts"),
        last === null ? "" : addTile("loss", formatPlain(last), "at the last log line"),
        speed ? addTile("tokens/s", formatAmount(speed), "median") : "",
        addTile("restarts", String(restarts), restarts ? `${run.attempts.length} attempts` : "")),
      run.command ? make("details", { class: "command" }, make("summary", {}, "command"),
        make("pre", {}, `cd ${run.directory || "?"}\n${run.command}`)) : ""));
}

function describeRun(run) {
  const ranks = `${formatCount(run.world)} rank${run.world === 1 ? "" : "s"}`;
  const nodes = run.nodes_text ? ` on ${run.nodes_text}` : "";
  return `${run.program || "a program"} · ${ranks}${nodes}`;
}

function addTile(name, value, note) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value), make("dd", { class: "note" }, note || " "));
}

function lastOf(values) {
  const known = (values || []).filter((value) => value !== null);
  return known.length ? known[known.length - 1] : null;
}

function medianOf(values) {
  const known = (values || []).filter((value) => value !== null).sort((a, b) => a - b);
  return known.length ? known[Math.floor(known.length / 2)] : null;
}

/* `verdict.number` is what its mark has in every chart. */
function addVerdicts(parent, run) {
  if (!run.verdicts.length) {
    const fine = run.state === "finished" || run.state === "running";
    const [slow] = run.lateness && run.lateness.slowest || [];
    if (fine && slow) parent.append(make("p", {}, `No verdict, but rank ${slow.rank} on ${slow.node} was late: ${slow.text}.`));
    else if (fine) parent.append(make("p", { class: "fine" }, "No verdict: nothing wrong was found."));
    return;
  }
  const list = make("ol", { class: "verdicts" });
  for (const verdict of run.verdicts) list.append(describeVerdict(verdict, run));
  parent.append(list);
}

function describeVerdict(verdict, run) {
  const where = [
    verdict.nodes.length ? formatNames(verdict.nodes) : "",
    verdict.ranks.length ? `rank${verdict.ranks.length > 1 ? "s" : ""} ${formatNames(verdict.ranks)}` : "",
  ].filter(Boolean).join(", ");
  const moment = [
    `after ${formatDuration(verdict.at - run.began)}`,
    verdict.step === null || verdict.step === undefined ? "" : `at step ${formatCount(verdict.step)}`,
    run.attempts.length > 1 && verdict.attempt ? `attempt ${verdict.attempt}` : "",
  ].filter(Boolean).join(", ");
  const until = verdict.until ? `; resolved after ${formatDuration(verdict.until - verdict.at)}` : "";
  return make("li", { class: `verdict ${verdict.severity}` },
    make("header", {},
      make("button", { class: "flag", title: "show this moment in all charts", onclick: () => choose(verdict.number) }, String(verdict.number)),
      make("h2", {}, verdict.title || verdict.code),
      make("code", {}, verdict.code)),
    make("dl", { class: "facts" },
      where ? [make("dt", {}, "where"), make("dd", { class: "strong" }, where)] : [],
      [make("dt", {}, "when"), make("dd", {}, moment + until)],
      verdict.seen ? [make("dt", {}, "seen"), make("dd", {}, formatCode(verdict.seen))] : [],
      verdict.why ? [make("dt", {}, "why"), make("dd", {}, formatCode(verdict.why))] : [],
      verdict.action ? [make("dt", {}, "done"), make("dd", {}, describeAction(verdict))] : [],
      verdict.consequences.map((each) => [make("dt", {}, "then"), make("dd", {}, formatCode(each))]),
      verdict.fix ? [make("dt", {}, "fix"), make("dd", {}, make("pre", { class: "fix" }, verdict.fix))] : []));
}

function describeAction(verdict) {
  return `${verdict.action}: ${verdict.done}${verdict.pause ? `; ${verdict.pause}` : ""}`;
}

function addLedger(parent, run) {
  const { ledger } = run;
  const classes = listClasses(ledger);
  const bar = make("div", { class: "bar", role: "img", "aria-label": `time: ${classes.map((each) => `${each.name} ${formatShare(each.seconds / ledger.wall)}`).join(", ")}` });
  const table = make("table", { class: "classes" }, make("caption", {}, `${formatDuration(ledger.wall)} in all`));
  for (const each of classes) {
    const part = make("i", { title: `${each.name}: ${formatDuration(each.seconds)}` });
    part.style.flexGrow = each.seconds / ledger.wall;
    part.style.background = each.color;
    bar.append(part);
    const swatch = make("span", { class: "swatch" });
    swatch.style.background = each.color;
    table.append(make("tr", {}, make("th", { scope: "row" }, swatch, each.name),
      make("td", {}, formatDuration(each.seconds)), make("td", {}, formatShare(each.seconds / ledger.wall))));
  }
  parent.append(bar, table);
}

function addTable(parent, heads, rows, caption) {
  const body = make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell, place) => (
    cell instanceof Node ? make(place ? "td" : "th", {}, cell) : make(place ? "td" : "th", {}, cell === null ? "–" : String(cell)))))));
  parent.append(make("div", { class: "scroll" }, make("table", { class: "grid" },
    caption ? make("caption", {}, caption) : "",
    make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col" }, head)))), body)));
}

function addOutput(parent, run) {
  for (const each of run.output) {
    const first = each.lines[0].at;
    const text = each.lines.map((line) => {
      const at = `+${(line.at - first).toFixed(1)}`.padStart(8);
      const gap = line.missing ? `[${formatBytes(line.missing)} are missing: ${line.why}]` : line.text;
      return `${at} s  ${line.stream === "stderr" ? "err" : "   "}  ${gap}`;
    }).join("\n");
    const shown = make("pre", { class: "output", tabindex: 0 }, text);
    parent.append(make("section", { class: "panel wide" },
      make("header", {}, make("h3", {}, `Rank ${each.rank} on ${each.node}`,
        make("span", { class: "unit" }, `last ${each.lines.length} lines, from ${formatDate(first)}`))),
      shown));
    shown.scrollTop = shown.scrollHeight;
  }
}
