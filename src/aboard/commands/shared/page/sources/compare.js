/* Several runs on the same axes, and the settings in which they differ. */

function showComparison(runs) {
  const main = document.getElementById("page");
  view.whole = { time: [0, Math.max(...runs.map((run) => run.until - run.began), 1)], step: findStepRange(runs) };
  view.axis = "step";
  if (!runs.some(hasSteps)) view.axis = "time";
  main.append(make("header", { class: "top" }, make("h1", {}, `${runs.length} runs`)));
  addTable(main, ["run", "state", "steps", "duration", "goodput", "loss", "evaluation", "tokens/s", "restarts", "verdict"], runs.map(describeComparedRun));
  addDifferences(runs);
  main.append(buildToolbar(null));
  addTraining(runs);
  if (!runs.every(hasSteps)) addComparedRanks(runs);
  const section = addSection("Where the time went");
  runs.forEach((run, place) => {
    if (!run.ledger.over) return;
    section.append(make("h3", { class: "run" }, nameRun(run, place)));
    addLedger(section, run);
  });
}

function nameRun(run, place) {
  const swatch = make("span", { class: "swatch" });
  swatch.style.background = pickColor(place);
  return make("span", {}, swatch, run.id);
}

function describeComparedRun(run, place) {
  const columns = run.metrics ? run.metrics.columns : {};
  const evaluations = run.metrics ? run.metrics.evaluations.eval_loss : [];
  return [
    nameRun(run, place), run.state, `${formatCount(run.step)}${run.steps ? ` of ${formatCount(run.steps)}` : ""}`,
    formatDuration(run.until - run.began), formatShare(run.goodput), formatPlain(lastOf(columns.loss)),
    formatPlain(lastOf(evaluations)), formatAmount(medianOf(columns.tokens_per_second)),
    String(Math.max(0, run.attempts.length - 1)), run.verdicts.length ? run.verdicts[0].code : "–",
  ];
}

function addDifferences(runs) {
  const section = addSection("Settings that differ");
  if (!page.differences.length) section.append(make("p", { class: "fine" }, "None of the recorded settings differ."));
  else addTable(section, ["setting", ...runs.map((run) => run.id)], page.differences.map((row) => [row.name, ...row.values]));
}

/* Of scripts, the steps of their first rank are known. */
function addComparedRanks(runs) {
  const grid = addGrid(addSection("Ranks", "Rank 0 of each run, as it was seen from outside."));
  const sources = runs.map((run) => {
    const first = (run.ranks ? run.ranks.series : []).find((each) => each.rank === 0);
    const figures = {};
    for (const [name, each] of Object.entries(first ? first.figures : {})) figures[name] = { at: each.at.map((at) => at - run.began), value: each.value };
    return { name: run.id, figures };
  });
  addSourceCharts(grid, RANK_FIGURES, sources, { began: 0, until: view.whole.time[1] });
}
