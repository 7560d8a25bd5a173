// The review page. State lives on the server's disk; this shows one label at a time and waits for "saved" before it moves on.

import { makeViewer } from "/viewer.js";

const AHEAD = 4;  // labels whose images are loaded before they are needed
const $ = (id) => document.getElementById(id);
const percent = (p) => `${Math.round(100 * p)} %`;

let about, current = null, seen = null, queue = [], busy = false, attempt = null;  // seen: the label whose image is on the screen
let filter = { scope: "priority", given: "", suggested: "" };
let shownAt = 0, away = 0, hiddenSince = 0;  // milliseconds: time on another tab is no work
const images = new Map(), examples = new Map(), notes = new Map();

history.replaceState(null, "", "/");  // the secret is in a cookie now: take it out of the address bar

const viewer = makeViewer($("viewer"), (scale, smooth) => {
  $("zoom").textContent = percent(scale * (window.devicePixelRatio || 1));
  document.querySelector('[data-view="smooth"]').setAttribute("aria-pressed", smooth);
});

// ---- talking to the server ----

async function talk(path, body) {
  const options = body ? { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) } : {};
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw { error: "The review server does not answer.", fix: "Start `fedgsca review` again and open the address that it prints. Saved decisions are kept." };
  }
  if (answer.ok) return answer.json();
  if (answer.status === 403) throw { error: "This page belongs to an earlier start of the server.", fix: "Open the address that `fedgsca review` printed last." };
  const said = await answer.json().catch(() => ({}));
  throw { error: said.error || `The server answered with an error (${answer.status}).`, fix: said.fix || "Reload the page." };
}

function complain(problem, what = "") {
  const parts = [what, problem.error].filter(Boolean).map(sentence);
  $("alert").replaceChildren(`${parts.join(" ")} `, make("span", sentence(problem.fix)));
  $("alert").hidden = false;
  toast("");  // "Saved" below "NOT saved" would be about another image
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
const calm = () => { $("alert").hidden = true; };
const say = (text) => { $("live").textContent = text; };

function make(tag, text = "", attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// ---- the list ----

function listed(start, count, open) {
  const query = new URLSearchParams({ start, count, open: open ? 1 : 0, scope: filter.scope, given: filter.given, suggested: filter.suggested });
  return talk(`/api/items?${query}`);
}

async function firstOpen(from = 0) {
  let found = await listed(from, AHEAD + 1, true);
  if (!found.items.length && from > 0) found = await listed(0, AHEAD + 1, true);  // those that were passed over
  return found;
}

async function goOn(from) {
  const waiting = queue.shift();
  if (waiting) {
    show(waiting);
  } else {
    const found = await firstOpen(from);
    if (!found.items.length) return finish(found);
    queue = found.items.slice(1);
    about.total = found.total;
    show(found.items[0]);
  }
}

async function refill() {
  if (!current) return;
  const after = (queue.at(-1) ?? current).position + 1;
  if (queue.length < AHEAD) {
    const asked = current, more = await listed(after, AHEAD - queue.length, true).catch(() => null);
    if (more && asked === current) queue.push(...more.items.filter((item) => item.row !== current.row));
  }
  for (const item of queue) { load(item.row); compare(item.row); }
  const wanted = new Set([current, ...queue].map((item) => item.row));
  for (const kept of [images, examples]) for (const row of kept.keys()) if (!wanted.has(row)) kept.delete(row);
}

function load(row) {  // the element itself is kept: the browser may not store what it was sent
  if (!images.has(row)) {
    const image = make("img", "", { alt: "", src: `/image/${row}`, draggable: "false" });
    images.set(row, image.decode().then(() => image));
    images.get(row).catch(() => images.delete(row));
  }
  return images.get(row);
}

function compare(row) {
  if (!examples.has(row)) {
    const found = talk(`/api/examples/${row}`).then(({ examples: groups }) => groups.map((one) => group(one, row)));
    examples.set(row, found);
    found.catch(() => examples.delete(row));
  }
  return examples.get(row);
}

// ---- one label ----

function show(item) {
  current = item;
  seen = null;
  attempt = null;
  $("done").hidden = true;
  $("work").hidden = false;
  const title = `Image ${item.position + 1} of ${about.total}`;
  $("item-title").textContent = title;
  $("viewer").setAttribute("aria-label", title);
  $("item-id").textContent = item.id;
  $("note").value = notes.get(item.row) ?? item.decision?.reason ?? "";
  describe(item);
  shownAt = performance.now();
  away = 0;
  endCompare();
  $("examples").replaceChildren();
  scrollTo(0, 0);  // on a narrow screen the page scrolls; the new image is at its top
  paint(item, title);
  compare(item.row).then((groups) => current === item && $("examples").replaceChildren(...groups.flat()), () => {});
  refill();
}

async function paint(item, title) {
  const slow = setTimeout(() => current === item && viewer.empty("Loading the image"), 150);
  try {
    const loaded = await load(item.row);
    if (current !== item) return;
    loaded.alt = `${title}, ${item.id}`;
    viewer.show(loaded);
    seen = item;
    shownAt = performance.now();
  } catch {
    if (current === item) viewer.empty("The image cannot be shown.");
  } finally {
    clearTimeout(slow);
  }
}

function describe(item) {
  const open = item.given !== undefined;
  for (const id of ["labels", "bars", "reason"]) $(id).hidden = !open;
  $("decided").hidden = !item.decision;
  if (item.decision) $("decided").textContent = `You decided: ${item.decision.label === null ? "cannot tell" : item.decision.label}`;
  let told = `${$("item-title").textContent}. `;
  if (open) {
    $("given").textContent = item.given;
    $("suggested").textContent = item.suggested;
    $("reason").textContent = item.reason;
    $("accept-text").textContent = `Accept ${item.suggested}`;
    $("keep-text").textContent = `Keep ${item.given}`;
    $("bars").tBodies[0].replaceChildren(...item.probabilities.map(([name, p]) => bar(name, p, name === item.given)));
    const others = Object.entries(item.opinions ?? {}).map(([who, [label, p]]) => `${who}: ${label} ${percent(p)}`);
    $("opinions").hidden = !others.length;
    $("opinions").textContent = `Second opinion: ${others.join("; ")}`;
    told += `Given ${item.given}, suggested ${item.suggested} with ${percent(item.probabilities[0][1])}. ${item.reason}`;
  } else {
    $("opinions").hidden = true;
  }
  say(`${saved}${told}`);
  saved = "";
}

let saved = "";  // what was just saved, told together with the next image

function bar(name, p, given) {
  const row = make("tr", "", given ? { class: "is-given" } : {}), head = make("th", name, { scope: "row" }), cell = make("td");
  if (given) head.append(make("small", "given"));
  const box = make("div", "", { class: "bar" }), track = make("span", "", { class: "track", "aria-hidden": "true" }), fill = make("i");
  fill.style.width = `${100 * p}%`;
  track.append(fill);
  box.append(track, make("span", percent(p)));
  cell.append(box);
  row.append(head, cell);
  return row;
}

function group({ label, rows }, suspect) {
  const heading = make("h3", `Clean ${label}`);
  if (!rows.length) return [heading, make("p", "No clean example is known.")];
  const line = make("div", "", { class: "row" });
  line.append(make("img", "", { src: `/thumbnail/${suspect}`, alt: "", title: "This image, as large as the clean ones", class: "this" }));
  rows.forEach((row, i) => {
    const button = make("button", "", { type: "button", "aria-pressed": "false", "aria-label": `Show clean ${label}, example ${i + 1}, in the large view` });
    button.append(make("img", "", { src: `/thumbnail/${row}`, alt: "" }));
    button.addEventListener("click", () => enlarge(row, label, button));
    line.append(button);
  });
  return [heading, line];
}

async function enlarge(row, label, button) {
  if (button.getAttribute("aria-pressed") === "true") return back();
  endCompare();
  button.setAttribute("aria-pressed", "true");
  const image = make("img", "", { alt: `A clean ${label}`, src: `/image/${row}`, draggable: "false" });
  try { await image.decode(); } catch { return; }
  if (button.getAttribute("aria-pressed") !== "true") return;
  viewer.show(image);
  $("comparing").replaceChildren(`For comparison: a clean ${label}. Back `, make("kbd", "Esc"));
  $("comparing").hidden = false;
  $("viewer").scrollIntoView({ block: "nearest" });
  say(`The large view shows a clean ${label}. Escape goes back.`);
}

function endCompare() {
  for (const button of document.querySelectorAll('#examples [aria-pressed="true"]')) button.setAttribute("aria-pressed", "false");
  const was = !$("comparing").hidden;
  $("comparing").hidden = true;
  return was;
}

async function back() {
  if (endCompare() && current) viewer.show(await load(current.row));
}

function finish(found) {
  current = null;
  queue = [];
  $("work").hidden = true;
  $("done").hidden = false;
  $("done-text").textContent = found.total ? `All ${found.total} labels in this list are decided and saved.` : "There is no label in this list.";
  say(`${saved}This list is done. ${$("done-text").textContent}`);
  saved = "";
}

// ---- decisions ----

async function guarded(work) {
  if (busy) return;
  busy = true;
  try {
    await work();
  } finally {
    busy = false;
  }
}

const decide = (action, label = null) => guarded(async () => {
  if (!current || seen !== current) return say("Wait for the image.");  // nobody decides about what was not shown
  const item = current, same = attempt && attempt.row === item.row && attempt.action === action && attempt.label === label;
  // the same click again after a lost answer keeps its name, so that it cannot count twice
  attempt = same ? attempt : { row: item.row, hash: item.hash, action, label, request: crypto.randomUUID() };
  const seconds = (performance.now() - shownAt - away) / 1000;
  let answer;
  try {
    answer = await talk("/api/decide", { ...attempt, reason: $("note").value.trim(), seconds });
  } catch (problem) {
    return complain(problem, problem.error.startsWith("NOT saved") ? "" : "NOT saved.");
  }
  calm();
  attempt = null;
  notes.delete(item.row);
  const done = answer.item;
  const said = done.decision.label === null ? "cannot tell" : done.decision.label;
  saved = about.blind ? `Saved: ${said}. Given was ${done.given}, the model says ${done.suggested}. ` : `Saved: ${said}. `;
  toast(saved);
  progress(answer.progress);
  await goOn(item.position + 1);
});

const undo = () => guarded(async () => {
  let answer;
  try {
    answer = await talk("/api/undo", { request: crypto.randomUUID() });
  } catch (problem) {
    return complain(problem, "Nothing was undone.");
  }
  calm();
  progress(answer.progress);
  if (!answer.undone) return say("There is nothing to undo.");
  saved = "Undone. ";
  toast(saved);
  await goTo(answer.undone.row);
});

async function goTo(row) {
  const query = new URLSearchParams({ scope: filter.scope, given: filter.given, suggested: filter.suggested });
  let { position } = await talk(`/api/place/${row}?${query}`);
  if (position === null) {  // it stands in another list: show everything
    filter = { scope: "all", given: "", suggested: "" };
    $("filter").value = JSON.stringify(filter);
    position = (await talk(`/api/place/${row}?scope=all`)).position;
  }
  await at(position);
}

async function at(position) {
  const found = await listed(position, 1, false);
  if (!found.items.length) return;
  about.total = found.total;
  queue = [];
  show(found.items[0]);
}

const step = (by) => guarded(async () => {
  keepNote();
  const position = current ? current.position + by : about.total - 1;
  if (position < 0 || position >= about.total) return say(by < 0 ? "This is the first image." : "This is the last image.");
  try {
    await at(position);
    calm();
  } catch (problem) {
    complain(problem);
  }
});

function keepNote() {
  if (current && $("note").value.trim()) notes.set(current.row, $("note").value);
}

function toast(text) {
  $("last").textContent = text;
}

function progress(now) {
  $("bar").max = Math.max(now.priority, 1);
  $("bar").value = now.priority_decided;
  const beyond = now.decided - now.priority_decided;
  $("progress-text").textContent = `${now.priority_decided} of ${now.priority} decided${beyond ? `, and ${beyond} others` : ""}`;
  const left = now.minutes_left;
  const time = left === null || now.priority === now.priority_decided ? "" : left < 1 ? ", under a minute left" : left < 90 ? `, about ${Math.round(left)} min left` : `, about ${(left / 60).toFixed(1)} h left`;
  $("speed").textContent = now.per_minute === null ? "" : `${now.per_minute.toFixed(now.per_minute < 10 ? 1 : 0)} per minute${time}`;
}

// ---- dialogs ----

function choose(typed = "") {
  if (!current) return;
  $("chooser-text").value = typed;
  fillChooser();
  $("chooser").showModal();
  $("chooser-text").focus();
}

function fillChooser() {
  const typed = $("chooser-text").value.trim().toLowerCase();
  const exact = ([name, i]) => String(i + 1) === typed || name.toLowerCase() === typed;
  const fits = about.classes.map((name, i) => [name, i]).filter(([name, i]) => !typed || name.toLowerCase().includes(typed) || String(i + 1).startsWith(typed));
  fits.sort((a, b) => exact(b) - exact(a));  // stable: what was typed in full comes first, and Enter takes the first
  $("chooser-list").classList.toggle("typed", Boolean(typed));
  $("chooser-list").replaceChildren(...fits.map(([name, i]) => {
    const line = make("li"), button = make("button", "", { type: "button" });
    const note = name === current.given ? "given" : name === current.suggested ? "suggested" : "";
    button.append(make("kbd", String(i + 1)), make("span", name), make("small", note));
    button.addEventListener("click", () => pick(name));
    line.append(button);
    return line;
  }));
}

function pick(name) {
  $("chooser").close();
  decide("change", name);
}

$("chooser-text").addEventListener("input", () => {
  const number = Number($("chooser-text").value);
  if (about.classes.length < 10 && Number.isInteger(number) && number >= 1 && number <= about.classes.length) return pick(about.classes[number - 1]);
  fillChooser();
});
$("chooser").addEventListener("keydown", (event) => {
  const buttons = [...$("chooser-list").querySelectorAll("button")], here = buttons.indexOf(document.activeElement);
  if (event.key === "Enter" && here < 0 && document.activeElement === $("chooser-text")) {
    event.preventDefault();
    buttons[0]?.click();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    const next = here + (event.key === "ArrowDown" ? 1 : -1);
    (next < 0 ? $("chooser-text") : buttons[Math.min(next, buttons.length - 1)])?.focus();
  }
});

async function showSummary() {
  let found;
  try {
    found = await talk("/api/summary");
  } catch (problem) {
    return complain(problem);
  }
  const body = $("summary-body");
  body.replaceChildren();
  const people = Object.entries(found.reviewers);
  if (!people.length) body.append(make("p", "Nothing has been decided yet."));
  else body.append(table("Decisions", ["Reviewer", "All", "Accepted", "Kept", "Other class", "Cannot tell", "Per minute"], people.map(([name, p]) =>
    [name, p.decided, p.actions.accept, p.actions.keep, p.actions.change, p.actions.unsure, p.per_minute === null ? "–" : p.per_minute.toFixed(1)])));
  const mine = found.reviewers[about.reviewer]?.confusions ?? [];
  if (mine.length) body.append(table("Your changes", ["Given → new", "Labels"], mine.slice(0, 12).map((c) => [`${c.given} → ${c.label}`, c.count])));
  if (found.agreement.length) body.append(table("Agreement of reviewers", ["Reviewers", "Both decided", "Both gave a label", "Same label", "Cohen’s κ"], found.agreement.map((a) =>
    [a.reviewers.join(", "), a.both, a.n, a.agree, a.kappa === null ? "–" : a.kappa.toFixed(2)])));
  if (found.damaged_lines) body.append(make("p", `${found.damaged_lines} damaged lines of the decisions file were skipped.`));
  $("summary").showModal();
}

function table(caption, head, rows) {
  const box = make("div", "", { class: "scroll" }), made = make("table");
  made.append(make("caption", caption));
  const line = made.createTHead().insertRow();
  for (const name of head) line.append(make("th", name, { scope: "col" }));
  const body = made.createTBody();
  for (const row of rows) {
    const cells = body.insertRow();
    row.forEach((value, i) => cells.append(i ? make("td", String(value)) : make("th", String(value), { scope: "row" })));
  }
  box.append(made);
  return box;
}

// ---- keys and buttons ----

const DO = {
  accept: () => !about.blind && decide("accept"),
  keep: () => !about.blind && decide("keep"),
  choose: () => choose(),
  unsure: () => decide("unsure"),
  undo,
  next: () => step(1),
  previous: () => step(-1),
};
const KEYS = {
  a: DO.accept, k: DO.keep, c: DO.choose, u: DO.unsure, z: DO.undo, n: DO.next, p: DO.previous,
  "+": viewer.in, "=": viewer.in, "-": viewer.out, 0: viewer.fit, o: viewer.original, x: viewer.smooth, r: () => $("note").focus(), "?": () => $("help").showModal(),
};
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ONCE = "akcuznp0123456789";  // a key that is held down must not run through the list

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape") return typing ? event.target.blur() : back();
  if (typing) return;
  if (ARROWS[event.key] && (viewer.isZoomed || document.activeElement === $("viewer"))) {
    event.preventDefault();
    return viewer.pan(...ARROWS[event.key]);
  }
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!$("shortcuts").checked && key !== "?" && document.activeElement !== $("viewer")) return;
  if (event.repeat && ONCE.includes(key)) return event.preventDefault();
  if (about?.blind && /^[1-9]$/.test(key)) {
    event.preventDefault();
    if (about.classes.length > 9) return choose(key);  // 1 may be the beginning of 12
    return about.classes[key - 1] && decide("change", about.classes[key - 1]);
  }
  if (KEYS[key]) {
    event.preventDefault();
    KEYS[key]();
  }
});

for (const button of document.querySelectorAll("[data-action]")) button.addEventListener("click", () => DO[button.dataset.action]());
for (const button of document.querySelectorAll("[data-view]")) button.addEventListener("click", () => viewer[button.dataset.view]());
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
$("open-help").addEventListener("click", () => $("help").showModal());
$("comparing").addEventListener("click", back);
$("open-summary").addEventListener("click", showSummary);
$("done-summary").addEventListener("click", showSummary);
$("shortcuts").checked = localStorage.getItem("shortcuts") !== "off";
$("shortcuts").addEventListener("change", () => localStorage.setItem("shortcuts", $("shortcuts").checked ? "on" : "off"));
document.addEventListener("visibilitychange", () => {
  if (document.hidden) hiddenSince = performance.now();
  else if (hiddenSince) away += performance.now() - Math.max(hiddenSince, shownAt);
});
$("filter").addEventListener("change", () => guarded(async () => {
  keepNote();
  filter = JSON.parse($("filter").value);
  queue = [];
  try {
    await goOn(0);
    calm();
  } catch (problem) {
    complain(problem);
  }
}));

// ---- start ----

function fillFilter() {
  const option = (text, value) => new Option(text, JSON.stringify(value));
  $("filter").append(
    option(`Priority list (${about.priority})`, { scope: "priority", given: "", suggested: "" }),
    option(`All labels (${about.labels})`, { scope: "all", given: "", suggested: "" }),
  );
  for (const [scope, title] of [["priority", "Priority list, given → suggested"], ["all", "All labels, given → suggested"]]) {
    const box = make("optgroup", "", { label: title });
    for (const pair of about.pairs) {
      const count = scope === "priority" ? pair.priority : pair.labels;
      if (count) box.append(option(`${pair.given} → ${pair.suggested} (${count})`, { scope, given: pair.given, suggested: pair.suggested }));
    }
    if (box.children.length) $("filter").append(box);
  }
}

function goBlind() {
  for (const button of document.querySelectorAll('[data-action="accept"], [data-action="keep"]')) button.hidden = true;
  document.querySelector('[data-action="choose"] span').textContent = "Find a class";
  $("blind-choices").hidden = false;
  about.classes.forEach((name, i) => {
    const button = make("button", "", { type: "button" });
    button.append(make("span", name), make("kbd", String(i + 1)));
    button.addEventListener("click", () => decide("change", name));
    $("blind-choices").append(button);
  });
}

async function start() {
  about = await talk("/api/about");
  about.total = 0;
  $("where").textContent = `${about.site} · ${about.reviewer}${about.blind ? " · blind" : ""}`;
  document.title = `Label review, ${about.site}`;
  for (const line of document.querySelectorAll(about.blind ? "[data-open-only]" : "[data-blind-only]")) line.hidden = true;
  fillFilter();
  if (about.blind) goBlind();
  progress(about.progress);
  await goOn(0);
}

start().catch(complain);
