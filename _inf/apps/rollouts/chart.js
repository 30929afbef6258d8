// Draws a line over the steps, with the values of the step that the mouse or an arrow key points at.
// After row.js.

const short = (value) => {
  if (value === null) return "none";
  const digits = Number(value.toPrecision(4));
  return Math.abs(digits) >= 1e7 ? digits.toExponential() : String(digits);
};

const counted = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;

function drawn(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// values: at each step, null where nothing is known. low, high: of a band. rows: of each step.
// choose: gets a step. The figure's `mark` shows which steps the filters choose.
function chart(title, at, values, { low, high, rows, choose }) {
  const known = [...values, ...(low || []), ...(high || [])].filter((value) => value !== null);
  if (!known.length) return null;
  const bottom = known.reduce((one, other) => Math.min(one, other));
  const top = known.reduce((one, other) => Math.max(one, other));
  const [begin, end] = [at[0], at[at.length - 1]];
  const x = (step) => (end > begin ? (300 * (step - begin)) / (end - begin) : 150);
  const y = (value) => (top > bottom ? 97 - 94 * ((value - bottom) / (top - bottom)) : 50);
  const line = (series) => series
    .map((value, place) => [at[place], value]).filter(([, value]) => value !== null)
    .map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`);
  const svg = drawn("svg", { viewBox: "0 0 300 100", preserveAspectRatio: "none", role: "img", tabindex: 0 });
  const chosen = drawn("rect", { class: "chosen", y: 0, height: 100, width: 0 });
  const here = drawn("line", { class: "here", y1: 0, y2: 100, visibility: "hidden" });
  const points = line(values);
  if (points.length === 1) points.push(`300,${points[0].split(",")[1]}`, `0,${points[0].split(",")[1]}`);
  svg.append(chosen);
  if (low) svg.append(drawn("polygon", { class: "band", points: [...line(low), ...line(high).reverse()].join(" ") }));
  svg.append(drawn("polyline", { class: "mean", points: points.join(" ") }), here);

  const measured = values.filter((value) => value !== null);
  const whole = `${title}: ${short(measured[0])} → ${short(measured[measured.length - 1])}`;
  const caption = element("figcaption", "", whole);
  svg.setAttribute("aria-label", whole);
  let pointed = -1;
  const point = (place) => {
    pointed = place;
    here.setAttribute("visibility", place < 0 ? "hidden" : "visible");
    caption.textContent = whole;
    if (place < 0) return;
    for (const name of ["x1", "x2"]) here.setAttribute(name, x(at[place]));
    const band = low && low[place] !== null ? `, quartiles ${short(low[place])} and ${short(high[place])}` : "";
    caption.textContent = `step ${at[place]}: ${short(values[place])}${band}, ${counted(rows[place], "row")}`;
  };
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const wanted = begin + ((event.clientX - box.left) / box.width) * (end - begin);
    return at.reduce((best, step, place) => (Math.abs(step - wanted) < Math.abs(at[best] - wanted) ? place : best), 0);
  };
  svg.addEventListener("mousemove", (event) => point(nearest(event)));
  svg.addEventListener("mouseleave", () => point(-1));
  svg.addEventListener("blur", () => point(-1));
  svg.addEventListener("click", (event) => choose(at[nearest(event)]));
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) point(Math.min(at.length - 1, Math.max(0, pointed + move)));
    else if (event.key === "Enter" && pointed >= 0) choose(at[pointed]);
    else return;
    event.preventDefault();
  });
  const plot = element("div", "plot");
  plot.append(element("span", "top", short(top)), element("span", "bottom", top > bottom ? short(bottom) : ""), svg);
  const ends = element("div", "ends");
  ends.append(element("span", "", `step ${begin}`), element("span", "", end > begin ? `step ${end}` : ""));
  const figure = element("figure");
  figure.append(caption, plot, ends);
  figure.mark = (first, last) => {
    const [from, to] = [x(Math.max(first, begin)) - 1, x(Math.min(last, end)) + 1];
    const all = first <= begin && last >= end;
    chosen.setAttribute("x", from);
    chosen.setAttribute("width", all ? 0 : Math.max(0, to - from));
  };
  return figure;
}
