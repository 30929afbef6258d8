// The page of `inf show FILE`: a list of rows with filters, and the chosen row. After row.js.

const { files, rows } = JSON.parse($("data").textContent);
const READOUT = $("readout").textContent;
let shown = []; // the rows that pass the filters
let current = -1; // the place in `shown`

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
  $("detail").replaceChildren(...sides.map((row, side) => article(row, files.length > 1 ? files[side] : null)));
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

showScale();
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
document.querySelector("button[type=reset]").addEventListener("click", (event) => {
  event.preventDefault(); // the form's own reset comes after all listeners, and so after `filter`
  $("filters").reset();
  filter();
});
$("detail").addEventListener("pointerover", readout);
$("detail").addEventListener("focusin", readout);
document.addEventListener("keydown", key);
filter();
