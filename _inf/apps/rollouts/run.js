// The page of `inf show FOLDER`: a run's samples over its steps. After row.js.

const data = JSON.parse($("data").textContent);
const { prompts, rows, steps, details } = data;
const LISTED = 500, COLUMNS = 12, OF_A_STEP = 4;
const MISSING = `The text of this row is not in this page, which would be too large: inf show ${data.name} --serve has it.`;
let passing = []; // the numbers of the rows that pass the filters
let entries = []; // what the list shows: prompts or rows
let current = -1;
let asked = 0; // counts what was asked for, so that a late answer is dropped

// ── Figures ─────────────────────────────────────────────────────────────────────────────────────

const mean = (values) => {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};

const short = (value) => (value === null ? "none" : String(Number(value.toPrecision(4))));

function drawn(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// A line over steps, with a band between two others. values: null where nothing is known.
function chart(title, at, values, low, high) {
  const known = [...values, ...(low || []), ...(high || [])].filter((value) => value !== null);
  if (!known.length) return null;
  const [bottom, top] = [Math.min(...known), Math.max(...known)];
  const [begin, end] = [at[0], at[at.length - 1]];
  const x = (step) => (end > begin ? (300 * (step - begin)) / (end - begin) : 150);
  const y = (value) => 95 - (90 * (value - bottom)) / (top - bottom || 1);
  const line = (series) => series
    .map((value, place) => [at[place], value]).filter(([, value]) => value !== null)
    .map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`);
  const figure = element("figure");
  const caption = `${title}: ${short(values[0])} → ${short(values[values.length - 1])}`;
  figure.append(element("figcaption", "", `${caption} (from ${short(bottom)} to ${short(top)})`));
  const svg = drawn("svg", { viewBox: "0 0 300 100", preserveAspectRatio: "none", role: "img" });
  svg.append(drawn("title", {}, caption));
  if (low) svg.append(drawn("polygon", { class: "band", points: [...line(low), ...line(high).reverse()].join(" ") }));
  const points = line(values);
  svg.append(drawn("polyline", { class: "mean", points: points.length > 1 ? points.join(" ") : `0,${points[0].split(",")[1]} 300,${points[0].split(",")[1]}` }));
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    const wanted = begin + ((event.clientX - box.left) / box.width) * (end - begin);
    const nearest = at.reduce((best, step) => (Math.abs(step - wanted) < Math.abs(best - wanted) ? step : best));
    $("first").value = $("last").value = nearest;
    filter().catch(failed);
  });
  figure.append(svg);
  return figure;
}

// ── Rows ────────────────────────────────────────────────────────────────────────────────────────

async function loaded(places) {
  const lacking = places.filter((place) => !details[place]);
  for (let begin = 0; data.asks_server && begin < lacking.length; begin += 50) {
    const answer = await fetch(`rows?at=${lacking.slice(begin, begin + 50).join(",")}`);
    if (!answer.ok) throw new Error(await answer.text());
    Object.assign(details, await answer.json());
  }
  for (const place of places) {
    const row = details[place];
    if (row && !(row.unsampled instanceof Set)) row.unsampled = new Set(row.unsampled);
  }
  return places.map((place) => details[place] || null);
}

const about = (place) =>
  `score ${short(rows.score[place])} · ${rows.length[place]} ${data.unit}`;

function text(row) {
  const said = row && (row.messages || []).filter((message) => message.role === "assistant");
  return row ? (said.length ? said[said.length - 1].content : row.preview) : MISSING;
}

// Up to `most` of the values, evenly spread, with the first and the last.
function spread(values, most) {
  if (values.length <= most) return values;
  return Array.from({ length: most }, (_, at) => values[Math.round((at * (values.length - 1)) / (most - 1))]);
}

async function showPrompt(prompt) {
  const mine = passing.filter((place) => rows.prompt[place] === prompt.id);
  const bySteps = new Map();
  for (const place of mine) {
    const step = rows.step[place];
    bySteps.set(step, [...(bySteps.get(step) || []), place]);
  }
  const all = [...bySteps.keys()];
  const taken = spread(all, COLUMNS);
  const places = taken.flatMap((step) => bySteps.get(step).slice(0, OF_A_STEP));
  const turn = ++asked;
  const texts = new Map((await loaded(places)).map((row, at) => [places[at], row]));
  if (turn !== asked) return;
  const made = document.createDocumentFragment();
  const first = texts.get(places[0]);
  const question = first && (first.messages || []).find((message) => message.role !== "assistant");
  const whole = first && first.prompt ? first.prompt.join("") : question && question.content;
  made.append(element("div", "text not-sampled", whole || prompt.text));
  if (all.length > 1) {
    made.append(chart("mean score of this prompt", all, all.map((step) => mean(bySteps.get(step).map((place) => rows.score[place])))) || "");
  }
  const shown = `${taken.length} of ${all.length} steps, ${places.length} of ${mine.length} answers`;
  made.append(element("p", "caption", shown));
  const columns = element("div", "columns");
  for (const step of taken) {
    const column = element("div");
    column.append(element("h2", "", `step ${step}`));
    for (const place of bySteps.get(step).slice(0, OF_A_STEP)) {
      const card = element("button", "card");
      card.type = "button";
      card.append(element("p", "caption", about(place)), element("div", "text", text(texts.get(place))));
      card.addEventListener("click", () => showRow(place).catch(failed));
      column.append(card);
    }
    columns.append(column);
  }
  made.append(columns);
  $("detail").replaceChildren(made);
  $("detail").scrollTop = 0;
}

async function showRow(place) {
  const turn = ++asked;
  const [row] = await loaded([place]);
  if (turn !== asked) return;
  const back = element("button", "", "All answers to this prompt");
  back.type = "button";
  back.addEventListener("click", () => showPrompt(promptOf.get(rows.prompt[place])).catch(failed));
  const bar = element("div");
  bar.append(back);
  const title = `step ${rows.step[place]} · ${about(place)}`;
  $("detail").replaceChildren(bar, row ? article(row, title) : element("p", "error", MISSING));
  $("detail").scrollTop = 0;
}

// ── The list and the filters ────────────────────────────────────────────────────────────────────

function entry(one, at) {
  const button = element("button");
  button.type = "button";
  if (typeof one === "number") {
    button.append(element("span", "number", `step ${rows.step[one]}`), element("span", "number", about(one)));
    button.append(element("span", "preview", promptOf.get(rows.prompt[one]).text));
  } else {
    const name = element("span", "number", `${one.rows} rows, ${one.steps} step${one.steps === 1 ? "" : "s"}`);
    const change = element("span", `number ${one.change > 0 ? "up" : one.change < 0 ? "down" : ""}`);
    change.textContent = one.change === null ? short(one.last) : `${short(one.first)} → ${short(one.last)}`;
    button.append(name, change, element("span", "preview", one.text));
  }
  button.addEventListener("click", () => choose(at).catch(failed));
  return button;
}

const promptOf = new Map(prompts.map((prompt) => [prompt.id, prompt]));

async function found(wanted) {
  if (!wanted) return null;
  if (data.asks_server) {
    const answer = await fetch(`search?text=${encodeURIComponent(wanted)}`);
    if (!answer.ok) throw new Error(await answer.text());
    return new Set(await answer.json());
  }
  const has = (row) => searched(row).includes(wanted.toLowerCase());
  return new Set(Object.keys(details).filter((place) => has(details[place])).map(Number));
}

async function filter() {
  const turn = ++asked;
  const bound = (id, other) => ($(id).value === "" ? other : Number($(id).value));
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
  if (how === "prompts") {
    const some = new Set(passing.map((place) => rows.prompt[place]));
    entries = prompts.filter((prompt) => some.has(prompt.id));
  } else {
    entries = [...passing];
    const by = { best: rows.score, longest: rows.length }[how];
    if (by) entries.sort((a, b) => (by[b] ?? -Infinity) - (by[a] ?? -Infinity));
  }
  const list = document.createDocumentFragment();
  entries.slice(0, LISTED).forEach((one, at) => list.append(entry(one, at)));
  if (entries.length > LISTED) list.append(element("p", "empty", `and ${entries.length - LISTED} more; narrow the filters`));
  if (!entries.length) list.append(element("p", "empty", "No row passes the filters."));
  $("list").replaceChildren(list);
  const unsearched = within && !data.asks_server && data.left_out ? `, searched in ${Object.keys(details).length}` : "";
  $("count").textContent = `${passing.length} of ${rows.step.length} rows${unsearched}, ${steps.step.length} steps, ${prompts.length} prompts`;
  current = -1;
  $("detail").replaceChildren();
  if (entries.length) await choose(0, false);
}

async function choose(at, focus = true) {
  const buttons = $("list").children;
  if (current >= 0) buttons[current].removeAttribute("aria-current");
  current = at;
  buttons[at].setAttribute("aria-current", "true");
  if (focus) {
    buttons[at].focus();
    buttons[at].scrollIntoView({ block: "nearest" });
  }
  const one = entries[at];
  await (typeof one === "number" ? showRow(one) : showPrompt(one));
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
    if (entries.length && at !== current) choose(at).catch(failed);
  } else return;
  event.preventDefault();
}

// ── Start ───────────────────────────────────────────────────────────────────────────────────────

$("title").textContent = document.title = data.name;
$("notes").textContent = data.notes.join(" ");
const band = (name) => [`${name}_mean`, `${name}_25`, `${name}_75`].map((key) => steps[key]);
$("charts").append(...[
  chart("score, mean and quartiles", steps.step, ...band("score")),
  chart(`length in ${data.unit}, mean and quartiles`, steps.step, ...band("length")),
  chart("share of answers cut by a limit", steps.step, steps.cut),
].filter(Boolean));
let waiting;
const later = () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => filter().catch(failed), 200);
};
$("filters").addEventListener("input", later);
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("reset", later);
document.addEventListener("keydown", key);
filter().catch(failed);
