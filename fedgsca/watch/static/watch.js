"use strict";
// Everything that comes from a run is text: it is set with textContent, never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const FAST = 2000, SLOW = 10000, TIMEOUT = 8000, REDRAW = 30000; // milliseconds
const COLOURS = 8;
let lastText = "", lastShow = 0;

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function drawn(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function score(value) { return value === null || value === undefined ? "–" : value.toFixed(1); }

function percent(share) { return share === null || share === undefined ? "–" : `${(100 * share).toFixed(0)} %`; }

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.round(seconds);
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

// when a site's state began, in words; nothing if it is not known
function sinceText(text) {
  const seconds = (Date.now() - Date.parse(text)) / 1000;
  return Number.isFinite(seconds) && seconds >= 0 ? `, for ${duration(seconds)}` : "";
}

function niceStep(span, count) {
  const raw = Math.max(span, 1e-9) / count;
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  for (const factor of [1, 2, 5, 10]) if (raw <= factor * power) return factor * power;
  return 10 * power;
}

// lines: [{points: [{round, value}], className}]; the axes fit all of them
function drawChart(lines, rounds, label, wide) {
  const width = wide ? 1000 : 440, height = wide ? 300 : 220;
  const left = 36, right = 14, top = 10, bottom = 26;
  const points = lines.flatMap((line) => line.points);
  const chart = drawn("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": label });
  if (!points.length) {
    chart.append(drawn("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no round has been tested yet"));
    return chart;
  }
  const values = points.map((point) => point.value);
  let low = Math.min(...values), high = Math.max(...values);
  const step = niceStep(Math.max(high - low, 4), 4);
  low = Math.max(0, Math.floor(low / step) * step);
  high = Math.min(100, Math.ceil(high / step) * step);
  if (high <= low) high = low + step;
  const last = Math.max(rounds, ...points.map((point) => point.round), 2);
  const x = (round) => left + ((round - 1) / (last - 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  for (let value = low; value <= high + 1e-9; value += step) {
    chart.append(drawn("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" }));
    chart.append(drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(Math.round(value * 10) / 10)));
  }
  const stride = Math.max(1, niceStep(last, wide ? 12 : 6));
  const ticks = [1];
  for (let round = stride; round <= last; round += stride) if (round > 1) ticks.push(round);
  for (const round of ticks) {
    chart.append(drawn("text", { x: x(round), y: height - 8, "text-anchor": "middle" }, String(round)));
  }
  for (const line of lines) {
    if (!line.points.length) continue;
    const path = line.points.map((point, i) => `${i ? "L" : "M"}${x(point.round).toFixed(1)} ${y(point.value).toFixed(1)}`);
    chart.append(drawn("path", { d: path.join(""), class: line.className }));
    if (line.dots) {
      const end = line.points[line.points.length - 1];
      chart.append(drawn("circle", { cx: x(end.round).toFixed(1), cy: y(end.value).toFixed(1), r: 4.5, class: line.className }));
    }
  }
  return chart;
}

function tile(list, name, value) {
  const box = element("div");
  box.append(element("dt", "", name), element("dd", "", value));
  list.append(box);
}

function siteTable(run) {
  const box = element("div", "scroll");
  box.tabIndex = 0;
  const table = element("table"), head = element("tr"), body = element("tbody");
  const hasSelector = run.sites.some((site) => site.selector);
  const hasFlags = run.sites.some((site) => site.flagged_share !== undefined && site.flagged_share !== null);
  const names = ["Site", "Now", "Images"];
  if (hasFlags) names.push("Labels flagged");
  if (hasSelector) names.push("Clean loss", "Noisy loss", "Share noisy");
  names.push("Updates refused");
  for (const name of names) {
    const cell = element("th", ["Site", "Now"].includes(name) ? "" : "number", name);
    cell.scope = "col";
    head.append(cell);
  }
  const top = element("thead");
  top.append(head);
  for (const site of run.sites) {
    const row = element("tr"), name = element("td", "name");
    if (site.is_online !== null && site.is_online !== undefined) {
      const dot = element("span", `dot ${site.is_online ? "yes" : "no"}`);
      dot.title = site.is_online ? "online" : "away";
      name.append(dot);
    }
    name.append(site.name);
    row.append(name, element("td", "now", site.state + sinceText(site.since)));
    row.append(element("td", "number", site.images === null ? "–" : String(site.images)));
    if (hasFlags) row.append(element("td", "number", percent(site.flagged_share)));
    if (hasSelector) {
      const selector = site.selector;
      row.append(element("td", "number", selector ? selector.clean_mean.toFixed(2) : "–"));
      row.append(element("td", "number", selector ? selector.noisy_mean.toFixed(2) : "–"));
      row.append(element("td", "number", selector ? percent(selector.noisy_share) : "–"));
    }
    row.append(element("td", "number", String(site.refusals)));
    body.append(row);
  }
  table.append(top, body);
  box.append(table);
  return box;
}

function onlineText(run) {
  const known = run.sites.filter((site) => site.is_online !== null && site.is_online !== undefined);
  if (!known.length) return String(run.sites.length + run.hidden_sites);
  return `${known.filter((site) => site.is_online).length} of ${run.sites.length + run.hidden_sites} online`;
}

function runCard(run, index, isSingle) {
  const card = element("article"), head = element("div", "head");
  head.append(element("h2", "", run.name), element("span", `state ${run.state}`, run.state));
  card.append(head);
  const facts = [run.method, run.data, run.noise && run.noise !== "0" ? `noise ${run.noise}` : ""].filter(Boolean);
  if (facts.length) card.append(element("p", "facts", facts.join(" · ")));
  if (run.detail) card.append(element("p", "note", run.detail));
  if (!run.rounds) return card;
  const progress = element("progress");
  progress.max = run.rounds;
  progress.value = Math.min(run.round, run.rounds);
  progress.setAttribute("aria-label", `round ${run.round} of ${run.rounds}`);
  card.append(progress);
  const tiles = element("dl", "tiles");
  tile(tiles, "Round", `${run.round} of ${run.rounds}`);
  tile(tiles, "Macro F1", score(run.f1));
  tile(tiles, "Best", score(run.best_f1));
  if (run.state !== "finished") tile(tiles, "Time left", duration(run.seconds_left));
  tile(tiles, "Per round", duration(run.seconds_per_round));
  tile(tiles, "Sites", onlineText(run));
  tile(tiles, "Updates refused", String(run.num_refusals));
  card.append(tiles);
  const lines = [
    { points: run.validation, className: "validation" },
    { points: run.forecast, className: "expected" },
    { points: run.test, className: `k${index % COLOURS}`, dots: true },
  ];
  const label = `Macro F1 of ${run.name}, ${score(run.f1)} after round ${run.round}`;
  card.append(drawChart(lines, run.rounds, label, isSingle && window.innerWidth > 700));
  const notes = ["solid: test set"];
  if (run.validation.length) notes.push("dashed: validation set");
  if (run.forecast.length) notes.push("dotted: expected without a true label");
  card.append(element("p", "note", `Macro F1 in percent over the rounds; ${notes.join(", ")}.`));
  if (run.sites.length) {
    card.append(element("h3", "", "Sites"), siteTable(run));
    if (run.sites.some((site) => site.selector)) {
      card.append(element("p", "note", "Clean and noisy loss are the means of the selector's two components at the site."));
    }
    if (run.hidden_sites) card.append(element("p", "note", `${run.hidden_sites} more sites are not listed.`));
  }
  if (run.refusals.length) {
    card.append(element("h3", "", "Refused updates, the newest first"));
    const list = element("ul", "messages");
    for (const refusal of run.refusals) list.append(element("li", "", `round ${refusal.round}, ${refusal.site}: ${refusal.reason}`));
    card.append(list);
  }
  if (run.messages.length) {
    card.append(element("h3", "", "Messages"));
    const list = element("ul", "messages");
    for (const message of run.messages.slice().reverse()) list.append(element("li", "", message));
    card.append(list);
  }
  return card;
}

function showTogether(runs) {
  const section = document.getElementById("together");
  const curves = runs.map((run, i) => ({ run, index: i })).filter((item) => item.run.test.length);
  section.hidden = runs.length < 2 || !curves.length;
  if (section.hidden) return;
  const legend = document.getElementById("legend"), lines = [];
  legend.replaceChildren();
  for (const { run, index } of curves) {
    const style = `k${index % COLOURS} d${Math.floor(index / COLOURS) % 3}`;
    lines.push({ points: run.test, className: style, dots: true });
    const entry = element("li"), swatch = drawn("svg", { viewBox: "0 0 26 10", class: "chart", "aria-hidden": "true" });
    swatch.append(drawn("path", { d: "M1 5H25", class: style }));
    entry.append(swatch, `${run.name} ${score(run.f1)}`);
    legend.append(entry);
  }
  const rounds = Math.max(...runs.map((run) => run.rounds));
  document.getElementById("together-chart").replaceChildren(
    drawChart(lines, rounds, `Macro F1 of ${curves.length} runs over the rounds`, window.innerWidth > 700));
}

function show(runs) {
  const place = document.getElementById("runs");
  const scrolls = [...place.querySelectorAll(".scroll")].map((box) => box.scrollTop);
  place.className = runs.length === 1 ? "single" : "";
  place.replaceChildren(...runs.map((run, i) => runCard(run, i, runs.length === 1)));
  [...place.querySelectorAll(".scroll")].forEach((box, i) => { box.scrollTop = scrolls[i] || 0; });
  showTogether(runs);
  const open = runs.filter((run) => run.state === "running").length;
  document.title = runs.length === 1 ? `${runs[0].round}/${runs[0].rounds} ${runs[0].name}` : `${open} running · fedgsca watch`;
}

async function update() {
  const alertBox = document.getElementById("alert");
  let pause = FAST;
  try {
    const answer = await fetch("api/runs", { signal: AbortSignal.timeout(TIMEOUT), cache: "no-store" });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const text = await answer.text();
    const runs = JSON.parse(text).runs;
    const shown = JSON.stringify(runs, (key, value) => (key === "seconds_silent" ? undefined : value));
    // "for 11 min" grows although no file has changed
    if (shown !== lastText || Date.now() - lastShow > REDRAW) {
      show(runs);
      lastShow = Date.now();
    }
    lastText = shown;
    alertBox.hidden = true;
    document.getElementById("clock").textContent = `as of ${new Date().toLocaleTimeString()}`;
    if (runs.every((run) => ["finished", "stopped", "silent"].includes(run.state))) pause = SLOW;
  } catch (error) {
    alertBox.textContent = `No contact to \`fedgsca watch\` (${error.message}). The runs are not affected; start the command again if it was stopped.`;
    alertBox.hidden = false;
    pause = SLOW / 2;
  }
  window.setTimeout(update, pause);
}

window.addEventListener("resize", () => { lastText = ""; });
update();
