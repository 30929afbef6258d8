"use strict";
// Shows one row. Everything from the data becomes text by textContent; no markup is ever made of it.

const $ = (id) => document.getElementById(id);
const PROBABILITIES = [0.95, 0.7, 0.4, 0.15, 0.05]; // below each, one step more of tint
const PIECE = 20000; // characters
const LONG_RUN = 8; // tokens
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

const finish = (row) => row.finish || (row.error ? "no answer" : "not said");

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

// The text of tokens; a run of a special one, such as an image's, as that token and a number.
function joined(texts) {
  let made = "";
  for (let begin = 0, end; begin < texts.length; begin = end) {
    for (end = begin + 1; texts[end] === texts[begin]; end++);
    const long = end - begin > LONG_RUN && /^[<\[].+[>\]]$/.test(texts[begin]);
    made += long ? `${texts[begin]} × ${end - begin} ` : texts.slice(begin, end).join("");
  }
  return made;
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
  let rest = joined(texts);
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

// Text of megabytes in pieces, so that the browser lays out those in sight only.
function inPieces(kind, text) {
  const made = element("div", kind);
  let rest = text;
  while (rest.length > PIECE) {
    const end = Math.max(rest.lastIndexOf("\n", PIECE), rest.lastIndexOf(" ", PIECE)) + 1 || PIECE;
    made.append(element("div", "piece", rest.slice(0, end)));
    rest = rest.slice(end);
  }
  made.append(made.firstChild ? element("div", "piece", rest) : rest);
  return made;
}

function messages(row) {
  const details = folded(`Messages (${row.messages.length})`, messagesOpen || !row.response || row.ids_only);
  details.classList.add("messages");
  for (const message of row.messages) {
    const box = element("div", "message");
    box.append(element("p", "caption", message.role));
    const kind = message.role === "assistant" ? "text" : "text not-sampled";
    box.append(inPieces(kind, message.content));
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

// title: of the article; null for none. row: null if there is none.
function article(row, title) {
  const made = element("article");
  if (title !== null) made.append(element("h2", "", title));
  if (!row) {
    made.append(element("p", "caption", "This file has no row of this id."));
    return made;
  }
  made.append(facts(row));
  if (row.error) made.append(element("p", "error", row.error));
  if (row.ids_only && row.messages) {
    const ids = folded("Token ids", false);
    ids.append(tokens(row));
    made.append(messages(row), ids);
  } else {
    made.append(tokens(row));
    if (row.messages) made.append(messages(row));
  }
  for (const [title, text] of row.folded) {
    const details = folded(title, false);
    details.append(element("pre", "", text));
    made.append(details);
  }
  return made;
}

// ── For the pages ───────────────────────────────────────────────────────────────────────────────

function searched(row) {
  if (row.text === undefined) {
    const said = (row.messages || []).map((message) => message.content);
    const all = [...(row.prompt || []), ...(row.response || []), "\n", row.preview, ...said];
    row.text = all.join("").toLowerCase();
  }
  return row.text;
}

function showScale() {
  const bounds = ["1", ...PROBABILITIES.map(String), "0"];
  bounds.slice(1).forEach((low, step) => {
    $("scale").append(element("li", `p${step}`, `${bounds[step]}–${low}`));
  });
}
