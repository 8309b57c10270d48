/* Draws every `.chart` of a page as SVG from the JSON in its `data-chart`, and redraws it when it is zoomed, smoothed
 * or resized, when lines are hidden, and when the colour scheme changes. No dependencies, nothing is fetched. */
(() => {
"use strict";

const NAMESPACE = "http://www.w3.org/2000/svg";
const DASHES = ["", "8 3", "3 3", "9 3 2 3", "12 4", "2 2"];
const FONT = "12px system-ui, sans-serif";
const BOTTOM = 40, TOP = 10, RIGHT = 14;
const STYLES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-linejoin", "stroke-dasharray",
  "font-family", "font-size", "font-weight", "opacity",
];

const settings = { hidden: new Set(), smoothing: 0, seeds: false };
const charts = [];
const pen = document.createElement("canvas").getContext("2d");

// ---------------------------------------------------------------------------------------------------- small helpers

const finite = (value) => typeof value === "number" && Math.abs(value) < 1e300;

function element(name, attributes = {}, ...children) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** A text at a place, which is its middle, or with another anchor its start or end. */
const label = (x, y, text, anchor = "middle") => element("text", { x, y, "text-anchor": anchor }, text);

/** A text that is read from below to above. */
const turned = (y, text) =>
  element("text", { transform: `translate(11 ${y}) rotate(-90)`, "text-anchor": "middle" }, text);

const colour = (kind, index) => `${kind}-${(index % DASHES.length) + 1}`;

function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value); else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function textWidth(text) {
  pen.font = FONT;
  return pen.measureText(text).width;
}

/** The lines of a text that is broken between words where it is too wide. */
function wrapped(text, width) {
  const lines = [];
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && textWidth(longer) <= width) lines[lines.length - 1] = longer; else lines.push(word);
  }
  return lines;
}

function short(value) {
  if (!finite(value)) return "–";
  const size = Math.abs(value);
  return size >= 1e5 || (size > 0 && size < 1e-4) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

const withMargin = (value, margin) =>
  short(value) + (finite(margin) ? ` ± ${short(Number(margin.toPrecision(2)))}` : "");

/** A tick mark as text, with a power of ten where it is very small or large. */
function mark(value) {
  const size = Math.abs(value);
  if (size === 0 || (size >= 0.001 && size < 1e6)) return String(Number(value.toPrecision(10)));
  const [digits, exponent] = value.toExponential(2).split("e");
  const power = "10" + String(Number(exponent)).replace(/./g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
  return Number(digits) === 1 ? power : `${Number(digits)}·${power}`;
}

// ------------------------------------------------------------------------------------------------------------- scales

function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((digit) => digit * power >= rough * 0.999) * power;
}

/** The least and the largest of the values, a little apart. */
function extent(values, otherwise) {
  const known = values.filter(finite);
  let [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : otherwise;
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) {
    const margin = Math.abs(low) / 10 || 1;
    [low, high] = [low - margin, high + margin];
  }
  return [low, high];
}

function scale(low, high, start, stop, ticks, log = false) {
  const size = (value) => (log ? Math.log(Math.max(value, low)) : value);
  const [first, last] = [size(low), size(high)];
  const at = (value) => start + ((size(value) - first) / (last - first)) * (stop - start);
  at.back = (place) => {
    const value = first + ((place - start) / (stop - start)) * (last - first);
    return log ? Math.exp(value) : value;
  };
  return Object.assign(at, { low, high, start, stop, ticks });
}

/** Tick marks at 1, 2 or 5 times a power of ten; the axis ends on them, or with `tight` at the values. */
function linear([low, high], start, stop, count, { whole = false, tight = false } = {}) {
  const step = Math.max(roundStep((high - low) / count), whole ? 1 : 0);
  const [first, last] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
  const ticks = Array.from({ length: last - first + 1 }, (_, n) => (first + n) * step);
  if (!tight) return scale(ticks[0], ticks.at(-1), start, stop, ticks);
  return scale(low, high, start, stop, ticks.filter((tick) => low <= tick && tick <= high));
}

/** Tick marks at powers of ten, on a short range also at 2 and 5 times these. */
function logarithmic([low, high], start, stop, tight) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  let ticks = [];
  if (last - first > 3) {
    const every = Math.ceil((last - first) / 6);
    for (let n = first; n < last + every; n += every) ticks.push(10 ** n);
  } else {
    for (let n = first - 1; n <= last; n++) ticks.push(...[1, 2, 5].map((digit) => digit * 10 ** n));
    const below = Math.max(...ticks.filter((tick) => tick <= low * 1.000001));
    ticks = ticks.filter((tick) => tick >= below);
    const enough = ticks.findIndex((tick, n) => n > 0 && tick >= high * 0.999999);
    if (enough > 0) ticks = ticks.slice(0, enough + 1);
  }
  if (!tight) return scale(ticks[0], ticks.at(-1), start, stop, ticks, true);
  return scale(low, high, start, stop, ticks.filter((tick) => low <= tick && tick <= high), true);
}

// -------------------------------------------------------------------------------------------------------- line charts

const isShown = (one) => !settings.hidden.has(one.name);

/** The exponential moving average, corrected for its start at zero; gaps stay gaps. */
function smoothed(values) {
  const weight = settings.smoothing;
  let [mean, seen] = [0, 0];
  return values.map((value) => {
    if (!finite(value)) return value;
    mean = weight * mean + (1 - weight) * value;
    seen += 1;
    return mean / (1 - weight ** seen);
  });
}

function edges(one, data, side) {
  const [low, high] = data.possible;
  return one.y.map((y, i) => {
    if (!one.margin || !finite(y) || !finite(one.margin[i])) return null;
    return Math.min(Math.max(y + side * one.margin[i], low ?? -Infinity), high ?? Infinity);
  });
}

/** All y values that a chart has to show, within a range of x. */
function heights(data, [from, to] = [-Infinity, Infinity]) {
  const found = [];
  for (const one of data.series.filter(isShown)) {
    const lists = [one.y, edges(one, data, 1), data.log ? [] : edges(one, data, -1)];
    if (settings.seeds) lists.push(...Object.values(one.runs));
    for (const list of lists) {
      found.push(...list.filter((value, i) => finite(value) && one.x[i] >= from && one.x[i] <= to));
    }
  }
  return data.log ? found.filter((value) => value > 0) : found;
}

const groupOf = (chart) =>
  charts.filter((one) => one === chart || (chart.data.group && one.data.group === chart.data.group));

/** One y scale for all charts of a group; a chart that is zoomed has its own. */
function yScale(chart, low, high) {
  const { data, view } = chart;
  const make = (values, tight) => (data.log
    ? logarithmic(values, low, high, tight)
    : linear(values, low, high, 5, { tight }));
  if (view.y) return make(view.y, true);
  const together = view.x ? [chart] : groupOf(chart);
  const values = together.flatMap((one) => heights(one.data, view.x ?? undefined));
  return make(extent(values, data.log ? [0.1, 1] : [0, 1]), false);
}

function xScale({ data, view }, start, stop) {
  const places = data.series.filter(isShown).flatMap((one) => one.x);
  const whole = places.every(Number.isInteger);
  const count = Math.max(2, Math.floor((stop - start) / 60));
  if (!data.names) return linear(view.x ?? extent(places, [0, 1]), start, stop, count, { whole, tight: true });
  const [low, high] = view.x ?? [-0.4, data.names.length - 0.6];
  const widest = Math.max(...data.names.map(textWidth)) + 10;
  const every = Math.max(1, Math.ceil((widest * (high - low)) / (stop - start)));
  const ticks = data.names.map((_, n) => n).filter((n) => n % every === 0 && low <= n && n <= high);
  return scale(low, high, start, stop, ticks);
}

const xText = (data, x) => (data.names ? data.names[x] ?? "" : mark(x));

function path(points) {
  return points.length ? "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L") : "";
}

/** The unbroken parts of a line, as lists of indices. */
function segments(values, log) {
  const parts = [[]];
  values.forEach((value, i) => {
    if (finite(value) && (value > 0 || !log)) parts.at(-1).push(i); else if (parts.at(-1).length) parts.push([]);
  });
  return parts.filter((part) => part.length);
}

function stroke(index, kind = "line") {
  const dash = DASHES[index % DASHES.length];
  return { class: `${kind} ${colour("stroke", index)}`, ...(dash ? { "stroke-dasharray": dash } : {}) };
}

function drawSeries(one, index, shift, x, y, data) {
  const parts = [], fill = colour("fill", index), place = (i) => x(one.x[i]) + shift;
  const upper = edges(one, data, 1), lower = edges(one, data, -1);
  const smooth = settings.smoothing > 0 && !data.names;
  const line = (values, kind) => {
    for (const part of segments(values, data.log)) {
      if (part.length > 1) {
        parts.push(element("path", { ...stroke(index, kind), d: path(part.map((i) => [place(i), y(values[i])])) }));
      } else {
        parts.push(element("circle", { class: fill, cx: place(part[0]), cy: y(values[part[0]]), r: 3.5 }));
      }
    }
  };
  const drawable = (value) => finite(value) && (value > 0 || !data.log);
  const banded = settings.seeds && Object.keys(one.runs).length
    ? [] : segments(upper.map((value, i) => (drawable(one.y[i]) ? value : null)));
  for (const part of banded) {
    if (part.length > 1 && !one.bars) {
      const [above, below] = [upper, lower].map((edge) => part.map((i) => [place(i), y(edge[i])]));
      const outline = [...above, ...below.reverse()];
      parts.push(element("path", { class: `band ${fill}`, d: `${path(outline)}Z` }));
    } else {
      for (const i of part) {
        const ends = path([[place(i), y(upper[i])], [place(i), y(lower[i])]]);
        parts.push(element("path", { class: stroke(index).class, d: ends }));
      }
    }
  }
  if (settings.seeds) Object.values(one.runs).forEach((run) => line(smooth ? smoothed(run) : run, "line seed"));
  if (smooth) line(one.y, "line raw");
  line(smooth ? smoothed(one.y) : one.y, one.bars ? "line thin" : "line");
  if (one.bars) {
    segments(one.y, data.log).flat().forEach((i) => {
      parts.push(element("circle", { class: fill, cx: place(i), cy: y(one.y[i]), r: 3.5 }));
    });
  }
  return parts;
}

function drawLines(chart) {
  const { data, svg, width } = chart, height = Math.min(Math.max(240, 0.5 * width), 360), low = height - BOTTOM;
  const y = yScale(chart, low, TOP);
  const left = Math.max(...y.ticks.map((tick) => textWidth(mark(tick)))) + 34;
  const x = xScale(chart, left, width - RIGHT), middle = (TOP + low) / 2;
  const grid = y.ticks.flatMap((tick) => [
    element("line", { class: tick === 0 ? "axis" : "grid", x1: left, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
    label(left - 6, y(tick) + 4, mark(tick), "end"),
  ]);
  const marks = x.ticks.map((tick) => {
    const text = xText(data, tick), half = textWidth(text) / 2;
    return label(Math.min(Math.max(x(tick), half), width - half), low + 16, text);
  });
  const clip = `clip-${charts.indexOf(chart)}`;
  const bars = data.series.filter((one) => one.bars && isShown(one));
  const lines = data.series.flatMap((one, index) => {
    if (!isShown(one)) return [];
    const shift = one.bars ? 7 * (bars.indexOf(one) - (bars.length - 1) / 2) : 0;
    return drawSeries(one, index, shift, x, y, data);
  });
  const cursor = element("g", { class: "cursor" });
  const wide = Math.max(0, width - RIGHT - left);
  const overlay = element("rect", { class: "overlay", x: left, y: TOP, width: wide, height: low - TOP });
  const inside = element("rect", { x: left, y: TOP - 4, width: wide + 4, height: low - TOP + 8 });
  size(svg, width, height);
  svg.replaceChildren(
    element("clipPath", { id: clip }, inside),
    ...grid,
    element("line", { class: "axis", x1: left, x2: width - RIGHT, y1: low, y2: low }),
    ...marks,
    label((left + width - RIGHT) / 2, low + 34, data.x_label),
    turned(middle, data.log ? `${data.y_label}, log scale` : data.y_label),
    element("g", { "clip-path": `url(#${clip})` }, ...lines),
    ...(heights(data).length ? [] : [label(width / 2, middle, "nothing to show")]),
    cursor, overlay,
  );
  Object.assign(chart, { x, y, cursor, overlay });
  chart.places = [...new Set(data.series.filter(isShown).flatMap((one) => one.x))]
    .filter((place) => place >= x.low && place <= x.high).sort((a, b) => a - b);
  chart.reset.hidden = !(chart.view.x || chart.view.y);
  read(chart, null);
}

/** Show the values at one place in the legend: they cover nothing. Without a place, the last ones. */
function read(chart, place) {
  const { data, x, y } = chart, at = place ?? chart.places.at(-1);
  const parts = place === null ? [] : [element("line", { class: "axis", x1: x(at), x2: x(at), y1: TOP, y2: y.start })];
  const rows = data.series.flatMap((one, index) => {
    if (!isShown(one)) return [];
    const smooth = settings.smoothing > 0 && !data.names;  // the margin is that of the raw mean
    const i = one.x.indexOf(at), values = smooth ? smoothed(one.y) : one.y;
    if (place !== null && finite(values[i]) && values[i] >= y.low && values[i] <= y.high) {
      parts.push(element("circle", { class: colour("fill", index), cx: x(at), cy: y(values[i]), r: 4 }));
    }
    const swatch = element("svg", { class: "swatch", width: 24, height: 10, "aria-hidden": "true" },
      element("line", { ...stroke(index), x1: 0, x2: 24, y1: 5, y2: 5 }));
    const value = i < 0 ? "–" : withMargin(values[i], smooth ? null : one.margin?.[i]);
    return [html("li", {}, swatch, html("span", { class: "name" }, one.name), html("span", { class: "value" }, value))];
  });
  chart.cursor.replaceChildren(...parts);
  chart.legend.replaceChildren(...rows);
  const name = data.x_label + (data.x_label.includes(",") ? ":" : "");
  chart.heading.textContent = at === undefined ? "" : `${name} ${xText(data, at)}${place === null ? " (last)" : ""}`;
  chart.at = place;
}

function nearest(chart, event) {
  const at = event.clientX - chart.svg.getBoundingClientRect().left;
  return chart.places.reduce((best, each) =>
    (best === null || Math.abs(chart.x(each) - at) < Math.abs(chart.x(best) - at) ? each : best), null);
}

function zoom(chart, view) {
  chart.view = view;
  draw(chart);
}

/** Drag to zoom: along one axis where the drag is along it, else both; a double click shows everything again. */
function listen(chart) {
  let start = null;
  const inside = (event) => {
    const box = chart.svg.getBoundingClientRect(), { x, y } = chart;
    return [
      Math.min(Math.max(event.clientX - box.left, x.start), x.stop),
      Math.min(Math.max(event.clientY - box.top, y.stop), y.start),
    ];
  };
  const selection = (event) => {
    const [a, b] = start, [c, d] = inside(event);
    const across = Math.abs(c - a) >= 12, down = Math.abs(d - b) >= 20 && event.pointerType !== "touch";
    return { across, down, x: [Math.min(a, c), Math.max(a, c)], y: [Math.min(b, d), Math.max(b, d)] };
  };
  const { svg } = chart;
  svg.addEventListener("pointerdown", (event) => {
    if (event.target !== chart.overlay || event.button !== 0) return;
    start = inside(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!start) {
      if (event.target === chart.overlay) read(chart, nearest(chart, event));
      else if (chart.at !== null) read(chart, null);
      return;
    }
    const { across, down, x, y } = selection(event);
    if (!across && !down) return;
    const [left, right] = across ? x : [chart.x.start, chart.x.stop];
    const [top, bottom] = down ? y : [chart.y.stop, chart.y.start];
    chart.cursor.replaceChildren(
      element("rect", { class: "selection", x: left, y: top, width: right - left, height: bottom - top }),
    );
  });
  svg.addEventListener("pointerup", (event) => {
    if (!start) return;
    const { across, down, x, y } = selection(event);
    start = null;
    if (across || down) {
      zoom(chart, {
        x: across ? x.map(chart.x.back) : chart.view.x,
        y: down ? [chart.y.back(y[1]), chart.y.back(y[0])] : across ? null : chart.view.y,
      });
    } else read(chart, nearest(chart, event));
  });
  svg.addEventListener("pointercancel", () => { start = null; read(chart, null); });
  svg.addEventListener("pointerleave", (event) => {
    if (!start && event.pointerType !== "touch") read(chart, null);  // what a finger tapped stays
  });
  svg.addEventListener("dblclick", () => zoom(chart, {}));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") zoom(chart, {});
    if (!step || !chart.places.length) return;
    event.preventDefault();
    const now = chart.at === null ? (step > 0 ? -1 : chart.places.length) : chart.places.indexOf(chart.at);
    read(chart, chart.places[Math.min(Math.max(now + step, 0), chart.places.length - 1)]);
  });
  svg.addEventListener("blur", () => read(chart, null));
}

// ----------------------------------------------------------------------------------------- strip charts and heat maps

/** The lowest level for every place, in ascending order, where the one before it is far enough away. */
function stacked(places, apart) {
  const last = [];
  return places.map((place) => {
    const free = last.findIndex((taken) => place - taken >= apart), level = free < 0 ? last.length : free;
    last[level] = place;
    return level;
  });
}

/** Every value of a sample as a dot, their mean and its interval below, and a line at zero; groups share the scale. */
function drawStrips(chart) {
  const { data, svg, width } = chart, side = 16;
  const values = groupOf(chart).flatMap((one) => one.data.samples).flatMap((one) => [
    ...one.values, one.mean, one.mean - one.margin, one.mean + one.margin,
  ]);
  const count = Math.max(2, Math.floor(width / 70));
  let x = linear(extent([0, ...values], [0, 1]), side, width - side, count);
  const half = Math.max(side, ...x.ticks.map((tick) => textWidth(mark(tick)) / 2));
  x = scale(x.low, x.high, half, width - half, x.ticks);
  const parts = [];
  let top = 0;
  data.samples.forEach((one, index) => {
    const [fill, stroked] = ["fill", "stroke"].map((kind) => colour(kind, index)), lines = wrapped(one.name, width - 4);
    lines.forEach((line, n) => parts.push(element("text", { class: "name", x: 0, y: top + 14 + 15 * n }, line)));
    top += 15 * lines.length + 4;
    for (const tick of x.ticks) {
      const kind = tick === 0 ? "zero" : "grid";
      parts.push(element("line", { class: kind, x1: x(tick), x2: x(tick), y1: top, y2: top + 46 }));
    }
    const known = one.values.filter(finite).sort((a, b) => a - b), levels = stacked(known.map(x), 8);
    const rise = Math.min(5, 20 / Math.max(1, ...levels));
    known.forEach((value, n) => parts.push(
      element("circle", { class: `dot ${fill}`, cx: x(value), cy: top + 26 - rise * levels[n], r: 4 },
        element("title", {}, short(value))),
    ));
    if (finite(one.mean)) {
      const [y, at] = [top + 38, x(one.mean)];
      if (finite(one.margin)) {
        const ends = { x1: x(one.mean - one.margin), x2: x(one.mean + one.margin), y1: y, y2: y };
        parts.push(element("line", { class: `line thick ${stroked}`, ...ends }));
      }
      const diamond = `${path([[at - 6, y], [at, y - 6], [at + 6, y], [at, y + 6]])}Z`;
      parts.push(element("path", { class: fill, d: diamond },
        element("title", {}, withMargin(one.mean, one.margin))));
    }
    top += 46;
  });
  parts.push(element("line", { class: "axis", x1: half, x2: width - half, y1: top, y2: top }));
  for (const tick of x.ticks) {
    parts.push(label(x(tick), top + 16, mark(tick)));
  }
  parts.push(label(width / 2, top + 34, data.x_label));
  size(svg, width, top + BOTTOM);
  svg.replaceChildren(...parts);
}

function rgb(root, name) {
  pen.fillStyle = getComputedStyle(root).getPropertyValue(name).trim() || "#808080";
  const hex = pen.fillStyle;
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

const mix = (a, b, share) => `rgb(${a.map((part, n) => Math.round(part + (b[n] - part) * share)).join(", ")})`;

/** From the background to one colour; on a range around zero one colour for each sign, and the background at zero. */
function palette(root, low, high) {
  const [none, plus, minus] = ["--card", "--series-2", "--series-3"].map((name) => rgb(root, name));
  const missing = mix(rgb(root, "--line"), none, 0);
  return (value) => {
    if (!finite(value)) return missing;
    if (low >= 0) return mix(none, plus, 0.06 + 0.94 * Math.min(Math.max((value - low) / (high - low), 0), 1));
    return value < 0 ? mix(none, minus, Math.min(1, value / low)) : mix(none, plus, Math.min(1, value / high));
  };
}

function drawHeat(chart) {
  const { data, svg, width } = chart, { values, low, high } = data;
  const rows = values.length, columns = Math.max(0, ...values.map((row) => row.length));
  const left = 44, top = 6, cell = Math.min((width - left - 66) / Math.max(1, columns), 320 / Math.max(1, rows));
  const shade = palette(chart.root, low, high), bottom = top + rows * cell, right = left + columns * cell;
  const parts = values.flatMap((row, i) => row.map((value, j) => element("rect", {
    x: (left + j * cell).toFixed(2), y: (top + i * cell).toFixed(2), width: (cell + 0.3).toFixed(2),
    height: (cell + 0.3).toFixed(2), fill: shade(value),
  })));
  const some = (count) => [...new Set([0, Math.floor(count / 2), count - 1])].filter((n) => n >= 0);
  parts.push(
    element("rect", { class: "frame", x: left, y: top, width: columns * cell, height: rows * cell }),
    ...some(rows).map((k) => label(left - 6, top + (k + 0.5) * cell + 4, String(k + 1), "end")),
    ...some(columns).map((k) => label(left + (k + 0.5) * cell, bottom + 15, String(k + 1))),
    label((left + right) / 2, bottom + 33, data.x_label),
    turned((top + bottom) / 2, data.y_label),
  );
  const steps = 24, each = (bottom - top) / steps;
  for (let k = 0; k < steps; k++) {
    const value = high - ((k + 0.5) * (high - low)) / steps;
    const place = { x: right + 16, y: top + k * each, width: 12, height: each + 0.3 };
    parts.push(element("rect", { ...place, fill: shade(value) }));
  }
  for (const value of low < 0 ? [high, 0, low] : [high, low]) {
    const y = top + ((high - value) / (high - low)) * (bottom - top);
    const base = Math.min(Math.max(y + 4, top + 10), bottom);
    parts.push(label(right + 33, base, mark(value), "start"));
  }
  size(svg, width, bottom + BOTTOM);
  svg.replaceChildren(...parts);
  svg.onpointermove = (event) => {
    const box = svg.getBoundingClientRect();
    const [i, j] = [event.clientY - box.top - top, event.clientX - box.left - left].map((at) => Math.floor(at / cell));
    const value = values[i]?.[j];
    const where = `${data.y_label} ${i + 1}, ${data.x_label} ${j + 1}`;
    chart.heading.textContent = value === undefined ? "" : `${where}: ${short(value)}`;
  };
  svg.onpointerleave = () => { chart.heading.textContent = ""; };
}

// ----------------------------------------------------------------------------------------------------------- downloads

function size(svg, width, height) {
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
}

/** The chart alone, with its title, legend and colours: a picture that needs nothing of the page. */
function picture(chart) {
  const { svg, data, width } = chart, [, , , height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const styled = (source) => {
    const copy = source.cloneNode(true);
    const [from, to] = [source, copy].map((one) => [one, ...one.querySelectorAll("*")]);
    from.forEach((one, n) => {
      const style = getComputedStyle(one);
      STYLES.forEach((name) => to[n].style.setProperty(name, style.getPropertyValue(name)));
    });
    copy.querySelectorAll(".cursor, .overlay").forEach((one) => one.remove());
    return copy;
  };
  const css = (name) => getComputedStyle(chart.root).getPropertyValue(name).trim();
  const title = wrapped(data.title, width - 20), above = 18 * title.length + 10;
  const rows = chart.legend ? [...chart.legend.children] : [];
  const whole = element("svg", {
    xmlns: NAMESPACE, width, height: above + height + 18 * rows.length + 8,
    "font-family": "sans-serif", "font-size": 12,
  });
  const text = (x, y, words, weight) => element("text", { x, y, fill: css("--ink"), "font-weight": weight }, words);
  const inner = element("g", { transform: `translate(0 ${above})` });
  inner.append(...styled(svg).childNodes);
  whole.append(
    element("rect", { width: "100%", height: "100%", fill: css("--card") }),
    ...title.map((line, n) => text(10, 18 * (n + 1), line, 600)), inner,
  );
  rows.forEach((row, n) => {
    const y = above + height + 18 * n + 10, line = styled(row.querySelector("line"));
    const name = row.querySelector(".name").textContent;
    whole.append(element("g", { transform: `translate(10 ${y - 9})` }, line), text(40, y, name, 400));
  });
  return whole;
}

function save(chart, kind, blob) {
  const name = chart.data.title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "chart";
  const link = html("a", { href: URL.createObjectURL(blob), download: `${name}.${kind}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function saveSvg(chart) {
  save(chart, "svg", new Blob([new XMLSerializer().serializeToString(picture(chart))], { type: "image/svg+xml" }));
}

function savePng(chart) {
  const drawn = picture(chart), image = new Image(), canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = ["width", "height"].map((side) => 2 * Number(drawn.getAttribute(side)));
  image.onload = () => {
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(chart, "png", blob));
  };
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(drawn))}`;
}

/** The data as rows of cells: of lines one row per x, with means, margins and seeds in columns. */
function table({ data }) {
  if (data.kind === "heat") {
    const header = [`${data.y_label} \\ ${data.x_label}`, ...(data.values[0] ?? []).map((_, j) => j + 1)];
    return [header, ...data.values.map((row, i) => [i + 1, ...row])];
  }
  if (data.kind === "strip") {
    return [["row", "kind", data.x_label], ...data.samples.flatMap((one) => [
      ...one.values.map((value) => [one.name, "seed", value]),
      [one.name, "mean", one.mean], [one.name, "95 % margin", one.margin],
    ])];
  }
  const columns = data.series.flatMap((one) => [
    [one.name, one, one.y], ...(one.margin ? [[`${one.name}, 95 % margin`, one, one.margin]] : []),
    ...Object.entries(one.runs).map(([seed, values]) => [`${one.name}, seed ${seed}`, one, values]),
  ]);
  const places = [...new Set(data.series.flatMap((one) => one.x))].sort((a, b) => a - b);
  return [[data.x_label, ...columns.map(([name]) => name)], ...places.map((place) => [
    data.names ? data.names[place] : place, ...columns.map(([, one, values]) => values[one.x.indexOf(place)] ?? ""),
  ])];
}

function saveCsv(chart) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = table(chart).map((row) => row.map((value) => quoted(String(value ?? ""))).join(","));
  save(chart, "csv", new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
}

// ------------------------------------------------------------------------------------------------------------ the page

const DRAW = { line: drawLines, strip: drawStrips, heat: drawHeat };

function draw(chart) {
  chart.width = Math.floor(chart.root.clientWidth);
  if (chart.width > 0) DRAW[chart.data.kind](chart);  // 0 while it is folded away; the observer calls again
}

const drawAll = () => charts.forEach(draw);

function build(root) {
  const data = JSON.parse(root.dataset.chart);
  const svg = element("svg", { role: "img", "aria-label": root.textContent.trim() });
  const chart = { root, data, svg, view: {}, at: null, heading: html("span", { class: "at" }) };
  chart.reset = html("button", { type: "button", class: "reset", onclick: () => zoom(chart, {}) }, "Reset zoom");
  chart.reset.hidden = true;
  const downloads = [["SVG", saveSvg], ["PNG", savePng], ["CSV", saveCsv]].map(([kind, make]) =>
    html("button", { type: "button", "aria-label": `${kind} of ${data.title}`, onclick: () => make(chart) }, kind));
  root.replaceChildren(svg, html("div", { class: "bar" }, chart.heading, chart.reset, ...downloads));
  if (data.kind === "line") {
    svg.setAttribute("tabindex", 0);
    chart.legend = html("ul", { class: "legend" });
    root.append(chart.legend);
    listen(chart);
  }
  charts.push(chart);
  new ResizeObserver(() => { if (Math.floor(root.clientWidth) !== chart.width) draw(chart); }).observe(root);
}

/** What acts on all line charts of the page: smoothing, the lines of the seeds, and which lines are shown. */
function controls() {
  const lines = charts.filter((one) => one.data.kind === "line");
  if (!lines.length) return;
  const series = lines.flatMap((one) => one.data.series), parts = [];
  if (lines.some((one) => !one.data.names && one.data.series.some((each) => each.x.length > 4))) {
    const slider = html("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, oninput: () => {
      settings.smoothing = Number(slider.value);
      shown.textContent = settings.smoothing ? settings.smoothing.toFixed(2) : "off";
      lines.forEach(draw);
    } });
    const shown = html("output", {}, "off");
    parts.push(html("label", {}, "Smoothing ", slider, " ", shown));
  }
  const box = (text, checked, act) => {
    const input = html("input", { type: "checkbox", onchange: () => { act(input.checked); lines.forEach(draw); } });
    input.checked = checked;
    return html("label", {}, input, ` ${text}`);
  };
  if (series.some((one) => Object.keys(one.runs).length)) {
    parts.push(box("Lines of the seeds", false, (on) => { settings.seeds = on; }));
  }
  const names = [...new Set(series.map((one) => one.name))];
  if (names.length > 1) {
    const boxes = names.map((name) => box(name, true, (on) => settings.hidden[on ? "delete" : "add"](name)));
    parts.push(html("details", { class: "shown" }, html("summary", {}, "Lines shown"), html("div", {}, ...boxes)));
  }
  parts.push(html("span", { class: "hint" }, "Drag to zoom, double-click to reset."));
  const first = lines[0].root.closest(".figures") ?? lines[0].root;
  first.before(html("div", { class: "chart-controls" }, ...parts));
}

document.querySelectorAll(".chart[data-chart]").forEach(build);
controls();
drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
new MutationObserver(drawAll).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
})();
