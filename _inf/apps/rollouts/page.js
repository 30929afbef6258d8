"use strict";
// Everything from the data becomes text by textContent; no markup is ever made of it.

const { files, rows } = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const PROBABILITIES = [0.95, 0.7, 0.4, 0.15, 0.05]; // below each, one step more of tint
const READOUT = $("readout").textContent;
let shown = []; // the rows that pass the filters
let current = -1; // the place in `shown`
let messagesOpen = false;

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function number(value, digits) {
  return value === null || value === undefined ? "none" : String(Number(value.toFixed(digits)));
}

const finish = (row) => row.finish || "no answer";

function tint(logprob) {
  const probability = Math.exp(logprob);
  return PROBABILITIES.filter((bound) => probability < bound).length;
}

// ── One row ─────────────────────────────────────────────────────────────────────────────────────

// The text of tools and users that follows the answers, to tell it from the template's.
function answersToModel(row) {
  const said = row.messages || [];
  const first = said.findIndex((message) => message.role === "assistant");
  return said.slice(first < 0 ? said.length : first)
    .filter((message) => message.role !== "assistant" && message.content)
    .map((message) => message.content);
}

function notSampled(texts, caption, given, marked = new Map()) {
  const section = element("section");
  section.append(element("p", "caption", `${caption} · ${texts.length} tokens`));
  const box = element("div", "text not-sampled");
  if (marked.size) {
    box.append(...texts.map((text, place) => marked.get(place) || text));
    section.append(box);
    return section;
  }
  let rest = texts.join("");
  while (given.length && rest.includes(given[0])) {
    const content = given.shift();
    const place = rest.indexOf(content);
    box.append(rest.slice(0, place), element("span", "tool", content));
    rest = rest.slice(place + content.length);
  }
  box.append(rest);
  section.append(box);
  return section;
}

function tokenOf(row, place) {
  const token = element("span", "token", row.response[place]);
  token.tabIndex = -1;
  token.classList.toggle("blank", /^\s*\n\s*$/.test(row.response[place]));
  token.dataset.about = `token ${JSON.stringify(row.response[place])}, id ${row.ids[place]}`;
  return token;
}

// What an agent loop returned with a mask that is not that of the ids that were sampled.
function mark(token, why) {
  token.classList.add("unsampled");
  token.dataset.about += `, ${why}`;
  return token;
}

function sampled(row, begin, end) {
  const section = element("section");
  const logprobs = row.logprobs && row.logprobs.slice(begin, end);
  const mean = logprobs && logprobs.reduce((sum, each) => sum + each, 0) / logprobs.length;
  const others = [...row.unsampled].filter((place) => begin <= place && place < end).length;
  const about = (others ? ` · ${others} of them not sampled there` : "")
    + (logprobs ? ` · mean log prob ${number(mean, 3)}` : "");
  section.append(element("p", "caption", `sampled · ${end - begin} tokens${about}`));
  const box = element("div", "text");
  for (let place = begin; place < end; place++) {
    const token = tokenOf(row, place);
    if (logprobs) {
      const logprob = row.logprobs[place];
      token.classList.add(`p${tint(logprob)}`);
      token.dataset.about +=
        `, log prob ${logprob.toFixed(4)}, probability ${(100 * Math.exp(logprob)).toFixed(2)} %`;
    }
    if (row.unsampled.has(place)) mark(token, "not sampled there, but its mask is 1");
    box.append(token);
  }
  section.append(box);
  return section;
}

function tokens(row) {
  const made = document.createDocumentFragment();
  if (row.prompt) made.append(notSampled(row.prompt, "prompt", []));
  if (!row.response) return made;
  const given = answersToModel(row);
  for (let begin = 0; begin < row.mask.length; ) {
    let end = begin;
    while (end < row.mask.length && row.mask[end] === row.mask[begin]) end++;
    if (row.mask[begin]) made.append(sampled(row, begin, end));
    else {
      const places = [...row.unsampled].filter((place) => begin <= place && place < end);
      const why = "sampled there, but its mask is 0";
      const marked = new Map(places.map((place) => [place - begin, mark(tokenOf(row, place), why)]));
      const texts = row.response.slice(begin, end);
      made.append(notSampled(texts, "tool, user or template", given, marked));
    }
    begin = end;
  }
  const first = made.querySelector(".token");
  if (first) first.tabIndex = 0;
  return made;
}

function folded(title, open) {
  const details = element("details");
  details.append(element("summary", "", title));
  details.open = open;
  return details;
}

function messages(row) {
  const details = folded(`Messages (${row.messages.length})`, messagesOpen || !row.response);
  details.classList.add("messages");
  for (const message of row.messages) {
    const box = element("div", "message");
    box.append(element("p", "caption", message.role));
    const kind = message.role === "assistant" ? "text" : "text not-sampled";
    box.append(element("div", kind, message.content));
    for (const call of message.calls) box.append(element("pre", "", call));
    details.append(box);
  }
  return details;
}

function facts(row) {
  const list = element("dl");
  const add = (name, value, kind) => {
    const pair = element("div", kind);
    pair.append(element("dt", "", name), element("dd", "", value));
    list.append(pair);
  };
  add("reward", number(row.reward, 4), "reward");
  add("finish reason", finish(row));
  for (const [name, value] of row.facts) add(name, value);
  return list;
}

function article(row, file) {
  const made = element("article");
  if (files.length > 1) made.append(element("h2", "", file));
  if (!row) {
    made.append(element("p", "caption", "This file has no row of this id."));
    return made;
  }
  made.append(facts(row));
  if (row.error) made.append(element("p", "error", row.error));
  made.append(tokens(row));
  if (row.messages) made.append(messages(row));
  for (const [title, text] of row.folded) {
    const details = folded(title, false);
    details.append(element("pre", "", text));
    made.append(details);
  }
  return made;
}

// ── The list and the filters ────────────────────────────────────────────────────────────────────

function entry(pair, place) {
  const button = element("button");
  button.type = "button";
  button.tabIndex = -1;
  const present = pair.sides.filter(Boolean);
  const rewards = pair.sides.map((row) => (row ? number(row.reward, 3) : "–")).join(" → ");
  const name = element("span", "number", `${pair.id} · ${finish(present[0])}`);
  if (present.some((row) => row.error)) name.append(" · ", element("span", "in-error", "error"));
  const unsampled = present.reduce((sum, row) => sum + row.unsampled.size, 0);
  if (unsampled) name.append(" · ", element("span", "in-error", `${unsampled} unsampled`));
  const of = (one) => one && one.sides.filter(Boolean)[0].rollout;
  const group = of(pair);
  if (group && of(shown[place - 1]) === group) button.classList.add("same-rollout");
  else if (group && of(shown[place + 1]) === group) {
    button.append(element("span", "rollout", `rollout ${group}`));
  }
  button.append(name);
  button.append(element("span", "number", rewards));
  button.append(element("span", "preview", present[0].preview));
  button.addEventListener("click", () => choose(place));
  return button;
}

function searched(row) {
  if (row.text === undefined) {
    const said = (row.messages || []).map((message) => message.content);
    const all = [...(row.prompt || []), ...(row.response || []), "\n", row.preview, ...said];
    row.text = all.join("").toLowerCase();
  }
  return row.text;
}

function passes(row) {
  const bound = (id) => ($(id).value === "" ? null : Number($(id).value));
  const low = bound("low"), high = bound("high");
  if ($("errors").checked && !row.error) return false;
  if ($("finish").value && finish(row) !== $("finish").value) return false;
  if ((low !== null || high !== null) && typeof row.reward !== "number") return false;
  if (low !== null && row.reward < low) return false;
  if (high !== null && row.reward > high) return false;
  const wanted = $("search").value.toLowerCase();
  return !wanted || searched(row).includes(wanted);
}

function filter() {
  const before = shown[current];
  shown = rows.filter((pair) => pair.sides.some((row) => row && passes(row)));
  const list = document.createDocumentFragment();
  shown.forEach((pair, place) => list.append(entry(pair, place)));
  if (!shown.length) list.append(element("p", "empty", "No row passes the filters."));
  $("list").replaceChildren(list);
  $("count").textContent = `${shown.length} of ${rows.length} rows`;
  current = -1;
  $("detail").replaceChildren();
  if (shown.length) choose(Math.max(0, shown.indexOf(before)), false);
}

function choose(place, focus = true) {
  const buttons = $("list").children;
  if (current >= 0) {
    buttons[current].removeAttribute("aria-current");
    buttons[current].tabIndex = -1;
  }
  current = place;
  const button = buttons[place];
  button.setAttribute("aria-current", "true");
  button.tabIndex = 0;
  if (focus) {
    button.focus();
    button.scrollIntoView({ block: "nearest" });
  } else { // scrollIntoView would make Tab go on from here and pass over the filters
    const list = $("list");
    list.scrollTop += button.getBoundingClientRect().top - list.getBoundingClientRect().top;
  }
  const sides = shown[place].sides;
  $("detail").replaceChildren(...sides.map((row, side) => article(row, files[side])));
  $("detail").scrollTop = 0;
  $("readout").textContent = READOUT;
}

// ── Tokens ──────────────────────────────────────────────────────────────────────────────────────

function readout(event) {
  const token = event.target.closest && event.target.closest(".token");
  if (token) $("readout").textContent = token.dataset.about;
}

function moveToken(step) {
  const active = document.activeElement;
  const from = active && active.classList.contains("token") ? active : null;
  const within = from ? from.closest("article") : $("detail");
  const all = [...within.querySelectorAll(".token")];
  const next = from ? all[all.indexOf(from) + step] : all[0];
  if (!next) return;
  if (from) from.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

// ── Keys ────────────────────────────────────────────────────────────────────────────────────────

function toggleMessages() {
  messagesOpen = !messagesOpen;
  for (const details of document.querySelectorAll(".messages")) details.open = messagesOpen;
}

function moveRow(step) {
  const place = Math.min(shown.length - 1, Math.max(0, current + step));
  if (shown.length && place !== current) choose(place);
}

const KEYS = {
  j: () => moveRow(1), ArrowDown: () => moveRow(1), k: () => moveRow(-1), ArrowUp: () => moveRow(-1),
  Home: () => moveRow(-rows.length), End: () => moveRow(rows.length),
  ArrowRight: () => moveToken(1), ArrowLeft: () => moveToken(-1),
  m: toggleMessages, "/": () => $("search").focus(),
};

function key(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.matches("input, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (!KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
}

// ── Start ───────────────────────────────────────────────────────────────────────────────────────

const bounds = ["1", ...PROBABILITIES.map(String), "0"];
bounds.slice(1).forEach((low, step) => {
  $("scale").append(element("li", `p${step}`, `${bounds[step]}–${low}`));
});
const reasons = rows.flatMap((pair) => pair.sides.filter(Boolean).map(finish));
for (const reason of [...new Set(reasons)].sort()) {
  const option = element("option", "", reason);
  option.value = reason;
  $("finish").append(option);
}
for (const row of rows.flatMap((pair) => pair.sides.filter(Boolean))) {
  row.unsampled = new Set(row.unsampled);
  if (row.unsampled.size) $("unsampled").hidden = false;
}
$("errors").disabled = !rows.some((pair) => pair.sides.some((row) => row && row.error));
$("title").textContent = document.title = files.join(" and ");
$("detail").classList.toggle("pair", files.length > 1);
document.body.classList.toggle("single", rows.length === 1);
$("filters").addEventListener("input", filter);
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("reset", () => setTimeout(filter));
$("detail").addEventListener("pointerover", readout);
$("detail").addEventListener("focusin", readout);
document.addEventListener("keydown", key);
filter();
