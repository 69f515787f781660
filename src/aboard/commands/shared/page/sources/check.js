/* A check of a cluster: findings, nodes, links. */

function showCheck(check) {
  const main = document.getElementById("page");
  const worst = check.findings.length ? check.findings[0].severity : "fine";
  main.append(make("header", { class: "top" },
    make("h1", {}, "Check", make("span", { class: `pill ${{ block: "bad", warn: "warn" }[worst] || "good"}` }, worst === "fine" ? "nothing found" : worst)),
    make("p", { class: "what" }, `${formatCount(check.nodes.length)} nodes from ${check.source}, in ${formatDuration(check.seconds)}, on ${formatDate(page.made)}`)));
  const list = make("ol", { class: "verdicts" });
  for (const finding of check.findings) {
    list.append(make("li", { class: `verdict ${finding.severity}` },
      make("header", {}, make("h2", {}, finding.title || finding.code), make("code", {}, finding.code)),
      make("dl", { class: "facts" },
        finding.nodes.length ? [make("dt", {}, "where"), make("dd", { class: "strong" }, formatNames(finding.nodes, 12))] : [],
        [["seen", finding.seen], ["why", finding.why]].filter(([, text]) => text).map(([name, text]) => [make("dt", {}, name), make("dd", {}, formatCode(text))]),
        finding.fix ? [make("dt", {}, "fix"), make("dd", {}, make("pre", { class: "fix" }, finding.fix))] : [])));
  }
  main.append(list);
  addTable(addSection("Subjects"), ["subject", "result", "not tested"], check.subjects.map((each) => [each.name, each.status, each.reason]));
  addTable(addSection("Nodes"), check.columns, check.nodes);
  addLinks(check.links);
  if (check.collectives.length) {
    addTable(addSection("Collectives"), ["collective", "size", "time", "algorithm bandwidth", "bus bandwidth"],
      check.collectives.map((row) => [row.op, formatBytes(row.size), formatSeconds(row.seconds), `${formatAmount(row.algorithm * 1e9)}B/s`, `${formatAmount(row.bus * 1e9)}B/s`]));
  }
}
