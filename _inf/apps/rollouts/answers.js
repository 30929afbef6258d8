// The answers of a run's page: of one prompt over the steps, and one row. After row.js and chart.js.

const data = JSON.parse($("data").textContent);
const { previews, steps, rows, details } = data; // rows: columns, in the order of the steps
rows.step = steps.step.flatMap((step, at) => Array(steps.rows[at]).fill(step));
const COLUMNS = 12, OF_A_STEP = 4, SHOWN = 900; // characters of an answer in a card
const missing = (what) => `The text of ${what} is not in this page, which would be too large: inf show ${data.name} --serve has it.`;
let passing = []; // the numbers of the rows that pass the filters
let asked = 0; // counts what was asked for, so that a late answer is dropped

async function fromServer(path) {
  const answer = await fetch(`${path}&reading=${data.reading}`);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

async function loaded(places) {
  const lacking = places.filter((place) => !details[place]);
  for (let begin = 0; data.asks_server && begin < lacking.length; begin += 50) {
    Object.assign(details, await fromServer(`rows?at=${lacking.slice(begin, begin + 50).join(",")}`));
  }
  for (const place of places) {
    const row = details[place];
    if (!row || row.unsampled instanceof Set) continue;
    row.unsampled = new Set(row.unsampled);
    for (const message of row.messages || []) message.content ??= data.questions[rows.prompt[place]];
  }
  return places.map((place) => details[place] || null);
}

const about = (place) =>
  `score ${short(rows.score[place])} · ${counted(rows.length[place], data.unit)}`;

function text(row) {
  const said = row && (row.messages || []).filter((message) => message.role === "assistant");
  return row ? (said.length ? said[said.length - 1].content : row.preview) : "not in this page";
}

// The beginning and the end, where an answer's result stands.
function shortened(whole) {
  if (whole.length <= SHOWN) return whole;
  const left_out = (whole.length - SHOWN).toLocaleString("en");
  return `${whole.slice(0, SHOWN / 2)}\n[… ${left_out} characters …]\n${whole.slice(-SHOWN / 2)}`;
}

const mean = (values) => {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};

// Up to `most` of the values, evenly spread, with the first and the last.
function spread(values, most) {
  if (values.length <= most) return values;
  return Array.from({ length: most }, (_, at) => values[Math.round((at * (values.length - 1)) / (most - 1))]);
}

function button(label, clicked) {
  const made = element("button", "", label);
  made.type = "button";
  made.addEventListener("click", clicked);
  return made;
}

async function showPrompt(id, all = false) {
  const bySteps = new Map();
  for (const place of passing) {
    if (rows.prompt[place] !== id) continue;
    const step = rows.step[place];
    if (!bySteps.has(step)) bySteps.set(step, []);
    bySteps.get(step).push(place);
  }
  const its = [...bySteps.keys()];
  const taken = spread(its, all ? Infinity : COLUMNS);
  const of = (step) => bySteps.get(step).slice(0, all ? Infinity : OF_A_STEP);
  const places = taken.flatMap(of);
  const turn = ++asked;
  const texts = new Map((await loaded(places)).map((row, at) => [places[at], row]));
  if (turn !== asked) return;
  const made = document.createDocumentFragment();
  const first = texts.get(places[0]);
  const question = first && (first.messages || []).find((message) => message.role !== "assistant");
  const whole = first && first.prompt && !first.ids_only ? first.prompt.join("") : question && question.content;
  made.append(inPieces("text not-sampled question", whole || previews[id]));
  if (its.length > 1) {
    const scores = its.map((step) => mean(bySteps.get(step).map((place) => rows.score[place])));
    const sizes = its.map((step) => bySteps.get(step).length);
    made.append(chart("mean score of this prompt", its, scores, { rows: sizes, choose: (step) => chooseStep(step, { prompt: id }) }) || "");
  }
  const mine = its.reduce((sum, step) => sum + bySteps.get(step).length, 0);
  const shown = element("p", "caption", `${taken.length} of ${counted(its.length, "step")}, ${places.length} of ${counted(mine, "answer")} `);
  if (places.length < mine) shown.append(button("Show all", () => showPrompt(id, true).catch(failed)));
  made.append(shown);
  const lacking = places.filter((place) => !texts.get(place)).length;
  if (lacking) made.append(element("p", "caption", missing(`${lacking} of these answers`)));
  const columns = element("div", "columns");
  for (const step of taken) {
    const column = element("div");
    column.append(element("h2", "", `step ${step}`), ...of(step).map((place) => card(place, texts.get(place))));
    columns.append(column);
  }
  made.append(columns);
  replaceDetail(made);
}

function card(place, row) {
  const made = button("", () => {
    remember("pushState", { row: place });
    showRow(place).catch(failed);
  });
  made.className = "card";
  made.append(element("p", "caption", about(place)), element("div", "text", shortened(text(row))));
  return made;
}

async function showRow(place) {
  const turn = ++asked;
  const [row] = await loaded([place]);
  if (turn !== asked) return;
  const id = rows.prompt[place];
  const bar = element("div");
  bar.append(button("All answers to this prompt", () => {
    remember("pushState", { prompt: id });
    showPrompt(id).catch(failed);
  }));
  const title = `step ${rows.step[place]} · ${about(place)}`;
  replaceDetail(bar, row ? article(row, title) : element("p", "error", missing("this answer")));
}

function replaceDetail(...made) {
  $("detail").replaceChildren(...made);
  $("detail").scrollTop = 0;
}
