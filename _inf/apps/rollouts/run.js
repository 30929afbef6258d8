// The page of `inf show FOLDER`: its list, filters and address. After row.js, chart.js and answers.js.

const LISTED = 500;
const FILTERS = ["listed", "first", "last", "low", "high", "search"];
let entries = []; // what the list shows: prompts with their figures, or numbers of rows
let current = -1;

// ── The list and the filters ────────────────────────────────────────────────────────────────────

// The prompts of the rows: how many rows and steps each has, the mean scores of its first and its
// last step that have one, and their difference, if these are two steps.
function promptsOf(places) {
  const found = new Map();
  const endStep = (prompt) => {
    if (!prompt.scores) return;
    prompt.last = prompt.sum / prompt.scores;
    prompt.first ??= prompt.last;
    prompt.scored += 1;
    prompt.sum = prompt.scores = 0;
  };
  for (const place of places) {
    const id = rows.prompt[place];
    if (!found.has(id)) found.set(id, { id, rows: 0, steps: 0, first: null, last: null, scored: 0, sum: 0, scores: 0 });
    const prompt = found.get(id);
    if (prompt.step !== rows.step[place]) {
      endStep(prompt);
      prompt.step = rows.step[place];
      prompt.steps += 1;
    }
    prompt.rows += 1;
    if (rows.score[place] === null) continue;
    prompt.sum += rows.score[place];
    prompt.scores += 1;
  }
  for (const prompt of found.values()) {
    endStep(prompt);
    prompt.change = prompt.scored > 1 ? prompt.last - prompt.first : null;
  }
  return [...found.values()];
}

const ORDERS = {
  prompts: (one) => (one.change === null ? -1 : Math.abs(one.change)),
  worse: (one) => (one.change === null ? -Infinity : -one.change),
  best: (place) => rows.score[place] ?? -Infinity,
  longest: (place) => rows.length[place],
};

function entry(one, at) {
  const made = button("", () => choose(at, "pushState").catch(failed));
  if (typeof one === "number") {
    made.append(element("span", "number", `step ${rows.step[one]}`), element("span", "number", about(one)));
    made.append(element("span", "preview", previews[rows.prompt[one]]));
    return made;
  }
  const change = element("span", `number ${one.change > 0 ? "up" : one.change < 0 ? "down" : ""}`);
  change.textContent = one.change === null ? short(one.last) : `${short(one.first)} → ${short(one.last)}`;
  change.title = "mean score: first step → last step";
  made.append(element("span", "number", `${counted(one.rows, "row")}, ${counted(one.steps, "step")}`));
  made.append(change, element("span", "preview", previews[one.id]));
  return made;
}

async function found(wanted) {
  if (!wanted) return null;
  if (data.asks_server) return new Set(await fromServer(`search?text=${encodeURIComponent(wanted)}`));
  const places = Object.keys(details).map(Number);
  await loaded(places);
  return new Set(places.filter((place) => searched(details[place]).includes(wanted.toLowerCase())));
}

const bound = (id, other) => ($(id).value === "" ? other : Number($(id).value));

// shown: the prompt or the row of a link, to show it instead of the first entry.
async function filter(shown = {}) {
  const turn = ++asked;
  const [first, last] = [bound("first", -Infinity), bound("last", Infinity)];
  const [low, high] = [bound("low", null), bound("high", null)];
  const within = await found($("search").value);
  if (turn !== asked) return;
  passing = [];
  for (let place = 0; place < rows.step.length; place++) {
    const score = rows.score[place];
    if (rows.step[place] < first || rows.step[place] > last) continue;
    if ((low !== null || high !== null) && score === null) continue;
    if ((low !== null && score < low) || (high !== null && score > high)) continue;
    if (within && !within.has(place)) continue;
    passing.push(place);
  }
  const how = $("listed").value;
  const ofPrompts = ["prompts", "worse"].includes(how);
  entries = ofPrompts ? promptsOf(passing) : [...passing];
  const order = ORDERS[how];
  if (order) {
    const keys = new Map(entries.map((one) => [one, order(one)]));
    entries.sort((a, b) => keys.get(b) - keys.get(a) || (ofPrompts ? a.id - b.id : a - b));
  }
  listEntries();
  for (const figure of $("charts").children) figure.mark(first, last);
  const unsearched = within && !data.asks_server && data.left_out ? `, searched in ${counted(Object.keys(details).length, "row")}` : "";
  $("count").textContent = `${passing.length.toLocaleString("en")} of ${counted(rows.step.length, "row")}${unsearched}, ${counted(steps.step.length, "step")}, ${counted(previews.length, "prompt")}`;
  current = -1;
  const at = entries.findIndex((one) => one.id === shown.prompt || one === shown.row);
  if (at >= 0 && at < LISTED) await choose(at);
  else if (shown.row !== undefined) await showRow(shown.row);
  else if (shown.prompt !== undefined) await showPrompt(shown.prompt);
  else if (entries.length) await choose(0);
  else replaceDetail();
}

function listEntries() {
  const list = document.createDocumentFragment();
  entries.slice(0, LISTED).forEach((one, at) => list.append(entry(one, at)));
  if (entries.length > LISTED) list.append(element("p", "empty", `and ${(entries.length - LISTED).toLocaleString("en")} more; narrow the filters`));
  if (!entries.length) list.append(element("p", "empty", "No row passes the filters."));
  $("list").replaceChildren(list);
}

// how: enters it into the browser's history, where a person chose it.
async function choose(at, how) {
  const buttons = $("list").children;
  if (current >= 0) buttons[current].removeAttribute("aria-current");
  current = at;
  buttons[at].setAttribute("aria-current", "true");
  buttons[at].scrollIntoView({ block: "nearest" });
  const one = entries[at];
  if (how) {
    buttons[at].focus();
    remember(how, typeof one === "number" ? { row: one } : { prompt: one.id });
  }
  await (typeof one === "number" ? showRow(one) : showPrompt(one.id));
}

// ── The address, which keeps the view ───────────────────────────────────────────────────────────

function remember(how, shown = {}) {
  const view = new URLSearchParams(shown);
  for (const id of FILTERS) if ($(id).value !== initial[id]) view.set(id, $(id).value);
  history[how](null, "", `#${view}`);
}

async function restore() {
  const view = new URLSearchParams(location.hash.slice(1));
  for (const id of FILTERS) $(id).value = view.get(id) ?? initial[id];
  const number = (name, below) => {
    const at = Number(view.get(name) ?? NaN);
    return Number.isInteger(at) && at >= 0 && at < below ? at : undefined;
  };
  await filter({ row: number("row", rows.step.length), prompt: number("prompt", previews.length) });
}

function filterAgain() {
  remember("replaceState");
  filter().catch(failed);
}

function chooseStep(step, shown = {}) {
  $("first").value = $("last").value = step;
  remember("pushState", shown);
  filter(shown).catch(failed);
}

function failed(error) {
  $("detail").replaceChildren(element("p", "error", `${error.message || error}`));
}

function key(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.matches("input, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const step = { j: 1, k: -1 }[event.key];
  if (event.key === "/") $("search").focus();
  else if (step) {
    const at = Math.min(Math.min(entries.length, LISTED) - 1, Math.max(0, current + step));
    if (entries.length && at !== current) choose(at, "replaceState").catch(failed);
  } else return;
  event.preventDefault();
}

// ── Start ───────────────────────────────────────────────────────────────────────────────────────

$("title").textContent = document.title = data.name;
$("read").textContent = `read ${data.read}${data.asks_server ? "; reload the page for newer steps" : ""}`;
$("notes").textContent = data.notes.join(" ");
const initial = Object.fromEntries(FILTERS.map((id) => [id, $(id).value]));
// The quartiles of scores that are right or wrong would be these two.
const twoScores = new Set(rows.score.filter((score) => score !== null)).size <= 2;
const curve = (name, title, banded) => chart(`${title}, mean${banded ? " and quartiles" : ""}`, steps.step, steps[`${name}_mean`], {
  rows: steps.rows, choose: chooseStep, ...(banded && { low: steps[`${name}_25`], high: steps[`${name}_75`] }),
});
$("charts").append(...[
  curve("score", "score", !twoScores),
  curve("length", `length in ${data.unit}s`, true),
  chart("share of answers cut by a limit", steps.step, steps.cut, { rows: steps.rows, choose: chooseStep }),
].filter(Boolean));
let waiting;
const later = () => {
  clearTimeout(waiting);
  waiting = setTimeout(filterAgain, 200);
};
$("filters").addEventListener("input", later);
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("reset", later);
document.addEventListener("keydown", key);
addEventListener("popstate", () => restore().catch(failed));
restore().catch(failed);
