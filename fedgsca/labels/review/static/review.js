// The review page. The state is on the server's disk; the page shows one label at a time and waits
// for "saved" before it shows the next one.

import { makeViewer } from "/viewer.js";
import { makeWindow } from "/window.js";

const WAIT = "Please wait for the image.";
const LEVELS = { strong: 3, moderate: 2, weak: 1 };  // of evidence: bars of three lengths
const LANGUAGES = ["en", "de", "fr"];
const PREFETCH = 4;  // labels whose images are loaded before they are needed
const byId = (id) => document.getElementById(id);
const percent = (p) => `${Math.round(100 * p)} %`;

let texts = {};  // English -> the language of the page
let about;  // what the server says about this review, and `total`, the length of the filtered list
let current = null;  // the label on the page
let paintedItem = null;  // the label whose image is on the screen
let queue = [];  // the labels after it
let busy = false;
let hasLeft = false;  // signed out: what was still on its way neither shows an image nor an error
let attempt = null;  // the decision that is being sent
let filter = { scope: "priority", given: "", suggested: "" };
let savedText = "";  // the last decision, announced together with the next image

// milliseconds; the time on another tab does not count
let shownAt = 0;
let awayTime = 0;
let hiddenSince = 0;

const images = new Map();
const examples = new Map();
const notes = new Map();

history.replaceState(null, "", "/");  // the secret is in a cookie now: remove it from the address

const viewer = makeViewer(byId("viewer"), (scale, smooth) => {
  byId("zoom").textContent = percent(scale * (window.devicePixelRatio || 1));
  document.querySelector('[data-view="smooth"]').setAttribute("aria-pressed", smooth);
});

const windowLevel = makeWindow(byId("viewer"), byId("window-filter"), {
  brightness: byId("brightness"),
  contrast: byId("contrast"),
  brightnessValue: byId("brightness-value"),
  contrastValue: byId("contrast-value"),
  invert: byId("invert"),
  reset: byId("reset-window"),
}, (isChanged) => byId("open-window").setAttribute("aria-pressed", isChanged));

// ---- languages ----

// The text in the language of the page, with {0}, {1}, ... replaced.
function t(text, ...values) {
  return (texts[text] ?? text).replace(/\{(\d)\}/g, (_, i) => values[i]);
}

// English texts are in index.html; texts.json has the others.
async function translatePage() {
  const wish = about.language || navigator.language.slice(0, 2);
  const language = LANGUAGES.includes(wish) ? wish : "en";
  document.documentElement.lang = language;
  texts = (await request("/texts.json"))[language] ?? {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const text = node.data.trim().replace(/\s+/g, " ");
    if (text in texts) node.data = node.data.replace(node.data.trim(), texts[text]);
  }
  for (const name of ["title", "aria-label", "placeholder", "aria-roledescription"]) {
    for (const node of document.querySelectorAll(`[${name}]`)) {
      node.setAttribute(name, t(node.getAttribute(name)));
    }
  }
}

// ---- requests ----

async function request(path, body) {
  const options = {};
  if (body) {
    options.method = "POST";
    options.headers = { "content-type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw {
      error: t("The review server does not answer."),
      fix: t(about?.shared
        ? "Try again in a moment, or ask the person who started it. Saved decisions are not lost."
        : "Run `fedgsca review` again and open the address that it prints. "
          + "Saved decisions are not lost."),
    };
  }
  if (answer.ok) return answer.json();
  if (answer.status === 403 && !about?.shared) {
    throw {
      error: t("This page belongs to an earlier start of the server."),
      fix: t("Open the address that `fedgsca review` printed last."),
    };
  }
  if (answer.status === 403 || answer.status === 429) {  // the server says why, in two sentences
    const text = (await answer.text().catch(() => "")).trim();
    const end = text.indexOf(". ") + 1;
    throw { error: t(text.slice(0, end).trim() || text), fix: t(text.slice(end).trim() || "Open your link.") };
  }
  const problem = await answer.json().catch(() => ({}));
  throw {
    code: problem.code,
    error: problem.error || t("The server reported an error ({0}).", answer.status),
    fix: t(problem.fix || "Reload the page."),
  };
}

function showError(problem, consequence = "") {
  if (hasLeft) return;
  const sentences = [consequence, problem.error].filter(Boolean).map(asSentence);
  const fix = element("span", asSentence(problem.fix));
  byId("alert").replaceChildren(`${sentences.join(" ")} `, fix);
  byId("alert").hidden = false;
  showLastDecision("");  // "Saved" below "NOT saved" would be about another image
}

function clearError() {
  if (hasLeft) return;
  byId("alert").hidden = true;
}

function asSentence(text) {
  const end = /[.!?]$/.test(text) ? "" : ".";
  return text.charAt(0).toUpperCase() + text.slice(1) + end;
}

function announce(text) {  // for screen readers
  byId("live").textContent = text;
}

function showLastDecision(text) {
  byId("last").textContent = text;
}

function element(tag, text = "", attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// ---- the list ----

function filterQuery() {
  return { scope: filter.scope, given: filter.given, suggested: filter.suggested };
}

function fetchItems(start, count, openOnly) {
  const query = new URLSearchParams({ start, count, open: openOnly ? 1 : 0, ...filterQuery() });
  return request(`/api/items?${query}`);
}

async function fetchOpenItems(start) {
  const page = await fetchItems(start, PREFETCH + 1, true);
  if (page.items.length || start === 0) return page;
  return fetchItems(0, PREFETCH + 1, true);  // those that were skipped
}

async function showNext(start) {
  const next = queue.shift();
  if (next) return showItem(next);
  const page = await fetchOpenItems(start);
  if (!page.items.length) return showDone(page);
  queue = page.items.slice(1);
  about.total = page.total;
  showItem(page.items[0]);
}

async function prefetch() {
  if (!current) return;
  const start = (queue.at(-1) ?? current).position + 1;
  if (queue.length < PREFETCH) {
    const item = current;
    const page = await fetchItems(start, PREFETCH - queue.length, true).catch(() => null);
    if (page && item === current) queue.push(...page.items.filter(({ row }) => row !== item.row));
  }
  for (const { row } of queue) {
    loadImage(row);
    loadExamples(row);
  }
  const needed = new Set([current, ...queue].map((item) => item.row));
  for (const cache of [images, examples]) {
    for (const row of cache.keys()) if (!needed.has(row)) cache.delete(row);
  }
}

function loadImage(row) {  // keeps the element itself: the browser must not store what it was sent
  if (!images.has(row)) {
    const image = element("img", "", { alt: "", src: `/image/${row}`, draggable: "false" });
    images.set(row, image.decode().then(() => image));
    images.get(row).catch(() => images.delete(row));
  }
  return images.get(row);
}

function loadExamples(row) {
  if (!examples.has(row)) {
    const groups = request(`/api/examples/${row}`).then((answer) =>
      answer.examples.map((group) => exampleGroup(group, row)));
    examples.set(row, groups);
    groups.catch(() => examples.delete(row));
  }
  return examples.get(row);
}

// ---- one label ----

function showItem(item) {
  if (hasLeft) return;
  current = item;
  paintedItem = null;
  attempt = null;
  byId("done").hidden = true;
  byId("work").hidden = false;
  const title = t("Image {0} of {1}", item.position + 1, about.total);
  byId("item-title").textContent = title;
  byId("viewer").setAttribute("aria-label", title);
  byId("item-id").textContent = item.id;
  byId("note").value = notes.get(item.row) ?? item.decision?.reason ?? "";
  describeItem(item);
  shownAt = performance.now();
  awayTime = 0;
  endComparison();
  byId("examples").replaceChildren();
  scrollTo(0, 0);  // on a narrow screen the page scrolls; the new image is at its top
  showImage(item, title);
  const showExamples = (groups) => {
    if (current === item) byId("examples").replaceChildren(...copyGroup(item), ...groups.flat());
  };
  loadExamples(item.row).then(showExamples, () => {});
  offerPatient(item);
  prefetch();
}

async function showImage(item, title) {
  const delay = setTimeout(() => current === item && viewer.empty(t("Loading the image")), 150);
  try {
    const image = await loadImage(item.row);
    if (current !== item) return;
    image.alt = item.id ? `${title}, ${item.id}` : title;  // a blind reviewer gets no path
    viewer.show(image);
    paintedItem = item;
    if (byId("live").textContent === t(WAIT)) announce("");
    shownAt = performance.now();
    const copy = (item.copies ?? []).find(({ row }) => row !== null);
    if (copy) showBeside(copy.row, copyText(copy));
  } catch {
    if (current === item) viewer.empty(t("The image cannot be displayed."));
  } finally {
    clearTimeout(delay);
  }
}

const labelText = (decision) => (decision.label === null ? t("cannot tell") : decision.label);
const copyText = ({ given, id }) => t("copy with the label {0}", given) + ` (${id})`;

function describeItem(item) {
  const hasLabels = item.given !== undefined;  // a blind reviewer does not get them
  for (const id of ["labels", "bars"]) byId(id).hidden = !hasLabels;
  byId("decided").hidden = !item.decision;
  if (item.decision) byId("decided").textContent = t("Your decision: {0}", labelText(item.decision));
  byId("reason").hidden = !item.copies?.length;
  byId("open-viewer").hidden = !item.link;
  if (item.link) byId("open-viewer").href = item.link;
  let announcement = `${byId("item-title").textContent}. `;
  byId("opinions").hidden = true;
  if (hasLabels) {
    byId("given").textContent = item.given;
    byId("suggested").textContent = item.suggested;
    byId("accept-text").textContent = t("Accept {0}", item.suggested);
    byId("keep-text").textContent = t("Keep {0}", item.given);
    const rows = item.levels.map(([name, level]) => levelRow(name, level, name === item.given));
    byId("bars").tBodies[0].replaceChildren(...rows);
    showOpinions(item.opinions);
    announcement += t("Given {0}, suggested {1}.", item.given, item.suggested) + " ";
  }
  if (item.copies?.length) {
    byId("reason").textContent = t("The same image, or nearly the same, has another label: {0}. At "
      + "least one of the labels is wrong.", item.copies.map(({ given }) => given).join(", "));
    announcement += byId("reason").textContent;
  }
  showReadings(item.readings ?? []);
  announce(`${savedText}${announcement}`);
  savedText = "";
}

function showReadings(readings) {  // what an adjudicator has to settle; without names
  byId("readings").hidden = !readings.length;
  byId("readings").replaceChildren(...readings.map((reading, i) => {
    const line = element("li", t("Reading {0}", i + 1) + ": ");
    line.append(element("strong", labelText(reading)));
    if (reading.reason) line.append(element("span", ` – ${reading.reason}`));
    return line;
  }));
}

function showOpinions(opinions) {
  const lines = opinions.map(([source, label, level]) => `${t(source)}: ${label} (${t(level)})`);
  byId("opinions").hidden = !lines.length;
  byId("opinions").textContent = `${t("Second opinion")}: ${lines.join("; ")}`;
}

function levelRow(name, level, isGiven) {
  const row = element("tr", "", isGiven ? { class: "is-given" } : {});
  const head = element("th", name, { scope: "row" });
  if (isGiven) head.append(element("small", t("given")));
  const fill = element("i");
  fill.style.width = `${100 * LEVELS[level] / 3}%`;
  const track = element("span", "", { class: "track", "aria-hidden": "true" });
  track.append(fill);
  const box = element("div", "", { class: "bar" });
  box.append(track, element("span", t(level)));
  const cell = element("td");
  cell.append(box);
  row.append(head, cell);
  return row;
}

function exampleGroup({ label, rows }, suspectRow) {
  const heading = element("h3", t("Clean {0}", label));
  if (!rows.length) return [heading, element("p", t("There is no clean example of this class."))];
  const line = element("div", "", { class: "row" });
  line.append(element("img", "", {
    src: `/thumbnail/${suspectRow}`,
    alt: "",
    title: t("This image at the size of the clean ones"),
    class: "this",
  }));
  rows.forEach((row, i) => {
    const button = element("button", "", {
      type: "button",
      "aria-pressed": "false",
      "aria-label": t("Show clean {0}, example {1}, beside the image", label, i + 1),
    });
    button.append(element("img", "", { src: `/thumbnail/${row}`, alt: "" }));
    button.addEventListener("click", () => toggleBeside(row, t("clean {0}", label), button));
    line.append(button);
  });
  return [heading, line];
}

function copyGroup({ copies = [] }) {
  if (!copies.length) return [];
  const line = element("div", "", { class: "row copies" });
  for (const copy of copies.filter(({ row }) => row !== null)) {
    const button = element("button", "", { type: "button", "aria-pressed": "false" });
    button.append(element("img", "", { src: `/thumbnail/${copy.row}`, alt: "" }));
    button.append(element("span", copy.given));
    button.addEventListener("click", () => toggleBeside(copy.row, copyText(copy), button));
    line.append(button);
  }
  return [element("h3", t("The same image with another label")), line];
}

// ---- another image beside this one; decisions are always about this one ----

const isPressed = (button) => button.getAttribute("aria-pressed") === "true";

function toggleBeside(row, text, button) {
  if (isPressed(button)) return endComparison();
  return showBeside(row, text, button);
}

async function showBeside(row, text, button = null) {
  endComparison();
  const item = current;
  button?.setAttribute("aria-pressed", "true");
  const image = element("img", "", { alt: text, src: `/image/${row}`, draggable: "false" });
  try {
    await image.decode();
  } catch {
    return;
  }
  if (current !== item || paintedItem !== item || (button && !isPressed(button))) return;
  viewer.compare(image, text);
  byId("comparing").replaceChildren(`${t("On the right: {0}.", text)} `, element("kbd", "Esc"));
  byId("comparing").hidden = false;
  byId("viewer").scrollIntoView({ block: "nearest" });
  announce(t("On the right: {0}. You decide about the image on the left.", text));
}

function nextBeside() {  // with the keyboard: copies and examples in turn
  const buttons = [...document.querySelectorAll("#examples button")];
  const next = buttons.findIndex(isPressed) + 1;
  if (next < buttons.length) buttons[next].click();
  else endComparison();
}

function endComparison() {
  const buttons = document.querySelectorAll('#examples [aria-pressed="true"]');
  for (const button of buttons) button.setAttribute("aria-pressed", "false");
  byId("comparing").hidden = true;
  viewer.alone();
}

function showDone(page) {
  if (hasLeft) return;
  current = null;
  queue = [];
  byId("work").hidden = true;
  byId("done").hidden = false;
  const [title, text] = doneText(page);
  byId("done-title").textContent = title;
  byId("done-text").textContent = text;
  announce(`${savedText}${title}. ${text}`);
  savedText = "";
}

function doneText(page) {
  const complete = t("This list is complete");
  if (page.total) {
    return [complete, t("All {0} labels in this list are decided and saved.", page.total)];
  }
  if (!about.adjudication) return [complete, t("There are no labels in this list.")];
  if (!about.open_readings.length) return [complete, t("The readers agree about every label.")];
  const names = about.open_readings.map((r) => `${r.reader} (${r.decided} of ${r.required})`);
  return [t("The readers have not finished"),
    t("You can settle their disagreements when all have. Still reading: {0}.", names.join(", "))];
}

// ---- all images of a patient ----

const GROUP_WORDS = { group: "patient or slide" };

async function offerPatient(item) {
  byId("open-patient").hidden = true;
  const group = await request(`/api/patient/${item.row}`).catch(() => null);
  if (current !== item || !group || group.total < 2) return;
  const word = t(GROUP_WORDS[group.word] ?? group.word);
  byId("open-patient").querySelector("span").textContent = t("Same {0} ({1})", word, group.total);
  byId("open-patient").hidden = false;
  byId("open-patient").onclick = () => showPatient(item, group, word);
}

function showPatient(item, group, word) {
  byId("patient-title").textContent = t("All images of the same {0}", word);
  const part = group.images.length < group.total
    ? `${t("{0} of {1} images, those around this one.", group.images.length, group.total)} ` : "";
  byId("patient-text").textContent = part + t("Click an image to see it beside this one.");
  byId("patient-images").replaceChildren(...group.images.map((image) => {
    const isThis = image.row === item.row;
    const words = [isThis ? t("this image") : "", image.given ?? "",
      image.suspect && !isThis ? t("also on the list") : ""].filter(Boolean).join(", ");
    const button = element("button", "", { type: "button", class: isThis ? "this" : "" });
    const picture = element("img", "", { src: `/image/${image.row}`, alt: "", loading: "lazy" });
    button.append(picture, element("span", words || t("another image")));
    button.addEventListener("click", () => {
      byId("patient").close();
      if (isThis) endComparison();
      else showBeside(image.row, t("another image of the same {0}", word));
    });
    return button;
  }));
  byId("patient").showModal();
}

// ---- decisions ----

async function oneAtATime(work) {
  if (busy) return;
  busy = true;
  try {
    await work();
  } finally {
    busy = false;
  }
}

const decide = (action, label = null) => oneAtATime(async () => {
  if (!current) return;  // the list is complete
  // nobody decides about an image that was not shown
  if (paintedItem !== current) return announce(t(WAIT));
  const item = current;
  const isRetry = attempt && attempt.row === item.row && attempt.action === action
    && attempt.label === label;
  if (!isRetry) {  // a retry after a lost answer keeps its id, so that it cannot count twice
    attempt = { row: item.row, hash: item.hash, action, label, request: crypto.randomUUID() };
    attempt.seen = item.decision?.time ?? "";  // another page may have decided since
  }
  const seconds = (performance.now() - shownAt - awayTime) / 1000;
  let answer;
  try {
    const reason = byId("note").value.trim();
    answer = await request("/api/decide", { ...attempt, reason, seconds });
  } catch (problem) {
    if (problem.code === "review.decided-meanwhile") {
      problem.error = t("NOT saved.");
      problem.fix = t("Another page under your name has decided about this image. Look at it again.");
      await showPosition(item.position);
      return showError(problem);
    }
    return showError(problem, problem.error.startsWith("NOT saved") ? "" : t("NOT saved."));
  }
  clearError();
  attempt = null;
  notes.delete(item.row);
  const saved = answer.item;
  savedText = `${t("Saved: {0}.", labelText(saved.decision))} `;
  if (about.blind && saved.given !== undefined) {  // not before the list is complete
    savedText += t("The given label was {0}, the model says {1}.", saved.given, saved.suggested);
  }
  showLastDecision(savedText);
  showProgress(answer.progress);
  await showNext(item.position + 1);
});

const undo = () => oneAtATime(async () => {
  let answer;
  try {
    answer = await request("/api/undo", { request: crypto.randomUUID() });
  } catch (problem) {
    return showError(problem, t("Nothing was undone."));
  }
  clearError();
  showProgress(answer.progress);
  if (!answer.undone) return announce(t("There is nothing to undo."));
  savedText = `${t("Undone.")} `;
  showLastDecision(savedText);
  await showRow(answer.undone.row);
});

async function showRow(row) {
  const query = new URLSearchParams(filterQuery());
  let { position } = await request(`/api/place/${row}?${query}`);
  if (position === null) {  // it is not in this list: show all labels
    filter = { scope: "all", given: "", suggested: "" };
    byId("filter").value = JSON.stringify(filter);
    position = (await request(`/api/place/${row}?scope=all`)).position;
  }
  await showPosition(position);
}

async function showPosition(position) {
  const page = await fetchItems(position, 1, false);
  if (!page.items.length) return;
  about.total = page.total;
  queue = [];
  showItem(page.items[0]);
}

const move = (by) => oneAtATime(async () => {
  keepNote();
  const position = current ? current.position + by : about.total - 1;
  if (position < 0) return announce(t("This is the first image."));
  if (position >= about.total) return announce(t("This is the last image."));
  try {
    await showPosition(position);
    clearError();
  } catch (problem) {
    showError(problem);
  }
});

function keepNote() {
  if (current && byId("note").value.trim()) notes.set(current.row, byId("note").value);
}

function showProgress(progress) {
  byId("bar").max = Math.max(progress.priority, 1);
  byId("bar").value = progress.priority_decided;
  let text = t("{0} of {1} decided", progress.priority_decided, progress.priority);
  const additional = progress.decided - progress.priority_decided;
  if (additional) text += t(", plus {0} others", additional);
  byId("progress-text").textContent = text;
  byId("speed").textContent = speedText(progress);
}

function speedText(progress) {
  if (progress.per_minute === null) return "";
  const rate = progress.per_minute.toFixed(progress.per_minute < 10 ? 1 : 0);
  const speed = t("{0} per minute", rate);
  const minutes = progress.minutes_left;
  if (minutes === null || progress.priority === progress.priority_decided) return speed;
  if (minutes < 90) {
    return t("{0}, about {1} min left", speed, Math.max(1, Math.round(minutes)));
  }
  return t("{0}, about {1} h left", speed, (minutes / 60).toFixed(1));
}

// ---- dialogs ----

function openChooser(typed = "") {
  if (!current) return;
  byId("chooser-text").value = typed;
  fillChooser();
  byId("chooser").showModal();
  byId("chooser-text").focus();
}

function fillChooser() {
  const typed = byId("chooser-text").value.trim().toLowerCase();
  const numbered = about.classes.map((name, i) => ({ name, number: String(i + 1) }));
  const isExact = ({ name, number }) => number === typed || name.toLowerCase() === typed;
  const fits = ({ name, number }) =>
    !typed || name.toLowerCase().includes(typed) || number.startsWith(typed);
  const choices = numbered.filter(fits);
  choices.sort((a, b) => isExact(b) - isExact(a));  // stable: an exact match first, for Enter
  byId("chooser-list").classList.toggle("typed", Boolean(typed));
  byId("chooser-list").replaceChildren(...choices.map(choiceLine));
}

function choiceLine({ name, number }) {
  let role = "";
  if (name === current.given) role = t("given");
  else if (name === current.suggested) role = t("suggested");
  const button = element("button", "", { type: "button" });
  button.append(element("kbd", number), element("span", name), element("small", role));
  button.addEventListener("click", () => chooseClass(name));
  const line = element("li");
  line.append(button);
  return line;
}

function chooseClass(name) {
  byId("chooser").close();
  decide("change", name);
}

byId("chooser-text").addEventListener("input", () => {
  const number = Number(byId("chooser-text").value);
  const count = about.classes.length;
  const isNumber = Number.isInteger(number) && number >= 1 && number <= count;
  if (count < 10 && isNumber) return chooseClass(about.classes[number - 1]);
  fillChooser();
});
byId("chooser").addEventListener("keydown", (event) => {
  const buttons = [...byId("chooser-list").querySelectorAll("button")];
  const focused = buttons.indexOf(document.activeElement);
  if (event.key === "Enter" && document.activeElement === byId("chooser-text")) {
    event.preventDefault();
    buttons[0]?.click();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    const next = focused + (event.key === "ArrowDown" ? 1 : -1);
    const target = next < 0 ? byId("chooser-text") : buttons[Math.min(next, buttons.length - 1)];
    target?.focus();
  }
});

async function showSummary() {
  let summary;
  try {
    summary = await request("/api/summary");
  } catch (problem) {
    return showError(problem);
  }
  const body = byId("summary-body");
  body.replaceChildren();
  const reviewers = Object.entries(summary.reviewers);
  if (reviewers.length) body.append(reviewerTable(reviewers));
  else body.append(element("p", t("Nothing has been decided yet.")));
  if (!summary.complete) {
    let text = t("The decisions of other reviewers and the agreement with them appear here when you "
      + "have decided about your whole list.");
    if (about.blind) {
      text += ` ${t("The given and the suggested labels are hidden until then, too.")}`;
    }
    body.append(element("p", text));
  }
  const changes = summary.reviewers[about.reviewer]?.confusions ?? [];
  if (changes.length) {
    const rows = changes.slice(0, 12).map((c) => [`${c.given} → ${c.label}`, c.count]);
    body.append(table(t("Your changes"), [t("Given → new"), t("Labels")], rows));
  }
  if (summary.agreement.length) body.append(agreementTable(summary.agreement));
  if (summary.damaged_lines) {
    body.append(element("p", t("Damaged lines of the decisions file that were skipped: {0}.",
      summary.damaged_lines)));
  }
  byId("summary").showModal();
}

function reviewerTable(reviewers) {
  const names = { accept: "Accepted", keep: "Kept", change: "Other class", unsure: "Cannot tell" };
  // a blind reviewer does not get all counts before the list is complete
  const actions = Object.keys(names).filter((action) => action in reviewers[0][1].actions);
  const head = [t("Reviewer"), t("All"), ...actions.map((action) => t(names[action])),
    t("Per minute")];
  const rows = reviewers.map(([name, { decided, actions: counts, per_minute: speed }]) => [
    name,
    decided,
    ...actions.map((action) => counts[action]),
    speed === null ? "–" : speed.toFixed(1),
  ]);
  return table(t("Decisions"), head, rows);
}

function agreementTable(pairs) {
  const head = ["Reviewers", "Both decided", "Both gave a label", "Same label", "Cohen's κ",
    "Weighted κ"].map((text) => t(text));
  const kappa = (value) => (value === null ? "–" : value.toFixed(2));
  const rows = pairs.map((pair) => [
    pair.reviewers.join(", "),
    pair.both,
    pair.n,
    pair.agree,
    kappa(pair.kappa),
    kappa(pair.weighted_kappa),
  ]);
  return table(t("Agreement between reviewers"), head, rows);
}

function table(caption, head, rows) {
  const node = element("table");
  node.append(element("caption", caption));
  const headRow = node.createTHead().insertRow();
  for (const name of head) headRow.append(element("th", name, { scope: "col" }));
  const body = node.createTBody();
  for (const [name, ...values] of rows) {
    const cells = body.insertRow();
    cells.append(element("th", String(name), { scope: "row" }));
    for (const value of values) cells.append(element("td", String(value)));
  }
  const box = element("div", "", { class: "scroll" });
  box.append(node);
  return box;
}

// ---- keys and buttons ----

const ACTIONS = {
  accept: () => !about.blind && decide("accept"),
  keep: () => !about.blind && decide("keep"),
  choose: () => openChooser(),
  unsure: () => decide("unsure"),
  undo,
  next: () => move(1),
  previous: () => move(-1),
};
const KEYS = {
  a: ACTIONS.accept,
  k: ACTIONS.keep,
  c: ACTIONS.choose,
  u: ACTIONS.unsure,
  z: ACTIONS.undo,
  n: ACTIONS.next,
  p: ACTIONS.previous,
  "+": viewer.in,
  "=": viewer.in,
  "-": viewer.out,
  0: viewer.fit,
  o: viewer.original,
  x: viewer.smooth,
  w: () => toggleWindowTools(),
  b: windowLevel.brighter,
  d: windowLevel.darker,
  m: windowLevel.more,
  l: windowLevel.less,
  i: windowLevel.invert,
  e: windowLevel.reset,
  v: () => nextBeside(),
  s: () => !byId("open-patient").hidden && byId("open-patient").click(),
  r: () => byId("note").focus(),
  "?": () => byId("help").showModal(),
};
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const NO_REPEAT = "akcuznp0123456789";  // a key that is held down must not run through the list

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (document.querySelector("dialog[open]")) return;
  const isTyping = event.target.matches("input:not([type=range]), select, textarea");
  if (event.key === "Escape") return isTyping ? event.target.blur() : endComparison();
  if (isTyping) return;
  const isOnImage = document.activeElement === byId("viewer");
  const isOnSlider = event.target.matches("input[type=range]");  // arrows move the slider
  if (ARROWS[event.key] && !isOnSlider && (viewer.isZoomed || isOnImage)) {
    event.preventDefault();
    return viewer.pan(...ARROWS[event.key]);
  }
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!byId("shortcuts").checked && key !== "?" && !isOnImage) return;
  if (event.repeat && NO_REPEAT.includes(key)) return event.preventDefault();
  if (about?.blind && /^[1-9]$/.test(key)) {
    event.preventDefault();
    return chooseByDigit(key);
  }
  if (KEYS[key]) {
    event.preventDefault();
    KEYS[key]();
  }
});

function chooseByDigit(digit) {
  if (about.classes.length > 9) return openChooser(digit);  // 1 may be the beginning of 12
  const name = about.classes[digit - 1];
  if (name) decide("change", name);
}

for (const button of document.querySelectorAll("[data-action]")) {
  button.addEventListener("click", () => ACTIONS[button.dataset.action]());
}
for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => viewer[button.dataset.view]());
}
for (const button of document.querySelectorAll("[data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}
function toggleWindowTools() {
  const isOpen = byId("window-tools").hidden;
  byId("window-tools").hidden = !isOpen;
  byId("open-window").setAttribute("aria-expanded", isOpen);
}

async function leave() {
  try {
    await request("/api/leave", {});
  } catch (problem) {
    return showError(problem, t("You are still signed in."));
  }
  for (const id of ["work", "done"]) byId(id).hidden = true;
  document.querySelector("header").hidden = true;
  current = null;
  viewer.empty("");
  byId("examples").replaceChildren();
  const fix = t("Your personal link opens the page again.");
  showError({ error: t("You have signed out."), fix });
  hasLeft = true;
}

byId("open-window").addEventListener("click", toggleWindowTools);
byId("leave").addEventListener("click", leave);
byId("open-help").addEventListener("click", () => byId("help").showModal());
byId("comparing").addEventListener("click", endComparison);
byId("open-summary").addEventListener("click", showSummary);
byId("done-summary").addEventListener("click", showSummary);
byId("shortcuts").checked = localStorage.getItem("shortcuts") !== "off";
byId("shortcuts").addEventListener("change", () => {
  localStorage.setItem("shortcuts", byId("shortcuts").checked ? "on" : "off");
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) hiddenSince = performance.now();
  else if (hiddenSince) awayTime += performance.now() - Math.max(hiddenSince, shownAt);
});
byId("filter").addEventListener("change", () => oneAtATime(async () => {
  keepNote();
  filter = JSON.parse(byId("filter").value);
  queue = [];
  try {
    await showNext(0);
    clearError();
  } catch (problem) {
    showError(problem);
  }
}));

// ---- start ----

function fillFilter() {
  const option = (text, value) => new Option(text, JSON.stringify(value));
  byId("filter").append(
    option(t("Priority list ({0})", about.priority),
      { scope: "priority", given: "", suggested: "" }),
    option(t("All labels ({0})", about.labels), { scope: "all", given: "", suggested: "" }),
  );
  const scopes = [
    ["priority", t("Priority list, given → suggested")],
    ["all", t("All labels, given → suggested")],
  ];
  for (const [scope, title] of scopes) {
    const box = element("optgroup", "", { label: title });
    for (const { given, suggested, labels, priority } of about.pairs) {
      const count = scope === "priority" ? priority : labels;
      const text = `${given} → ${suggested} (${count})`;
      if (count) box.append(option(text, { scope, given, suggested }));
    }
    if (box.children.length) byId("filter").append(box);
  }
}

function prepareBlindReview() {
  const hidden = document.querySelectorAll('[data-action="accept"], [data-action="keep"]');
  for (const button of hidden) button.hidden = true;
  document.querySelector('[data-action="choose"] span').textContent = t("Find a class");
  byId("blind-choices").hidden = false;
  about.classes.forEach((name, i) => {
    const button = element("button", "", { type: "button" });
    button.append(element("span", name), element("kbd", String(i + 1)));
    button.addEventListener("click", () => decide("change", name));
    byId("blind-choices").append(button);
  });
}

async function start() {
  about = await request("/api/about");
  about.total = 0;
  await translatePage();
  let mode = about.blind ? ` · ${t("blind")}` : "";
  if (about.adjudication) mode = ` · ${t("settles disagreements")}`;
  byId("leave").hidden = !about.shared;
  if (about.adjudication) byId("filter").closest("label").hidden = true;
  byId("where").textContent = `${about.site} · ${about.reviewer}${mode}`;
  document.title = `${t("Label review")}, ${about.site}`;
  const irrelevant = about.blind ? "[data-open-only]" : "[data-blind-only]";
  for (const line of document.querySelectorAll(irrelevant)) line.hidden = true;
  fillFilter();
  if (about.blind) prepareBlindReview();
  showProgress(about.progress);
  await showNext(0);
}

start().catch(showError);
