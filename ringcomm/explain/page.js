"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const MOST_TOKENS = 300; // more would not travel smoothly
const n = data.world_size;
const bits = (hex) => BigInt("0x" + hex);
const complete = data.complete.map(bits);
const color = (rank) => `hsl(${(360 * rank) / n} 70% 62%)`;

// What is shown: the state after `shown` steps. While the next step's tokens travel, `frame` is
// their animation.
let shown = 0;
let frame = 0;
let playing = false;

function sources(mask) {
  return [...Array(n).keys()].filter((rank) => (mask >> BigInt(rank)) & 1n);
}

// A cell has a stripe for each rank, or several rows of them where they would be thinner than 2
// pixels: so many are seen in a row of a cell as page.css makes it.
const many = data.num_chunks > 16;
const shape = many ? 1 : 2; // of a cell, width over height
const columns = n <= (many ? 6 : 16) ? n : Math.ceil(Math.sqrt(shape * n));
const rows = Math.ceil(n / columns);

function stripes(mask) {
  const layers = [];
  for (let row = 0; row < rows; ++row) {
    const parts = [];
    for (let column = 0; column < columns; ++column) {
      const rank = row * columns + column;
      const fill = (mask >> BigInt(rank)) & 1n ? color(rank) : "transparent";
      parts.push(`${fill} ${(100 * column) / columns}% ${(100 * (column + 1)) / columns}%`);
    }
    const top = rows === 1 ? 0 : (100 * row) / (rows - 1);
    layers.push(
      `linear-gradient(to right, ${parts.join(", ")}) 0 ${top}% / 100% ${100 / rows}% no-repeat`,
    );
  }
  return layers.join(", ");
}

// ---- The table of buffers

const cells = [];

function buildTable() {
  const table = at("buffers");
  table.classList.toggle("many", many);
  table.style.setProperty("--cell", `${Math.min(16, Math.max(12, 2 * columns))}px`);
  const head = table.createTHead().insertRow();
  for (let chunk = -1; chunk < data.num_chunks; ++chunk) {
    const th = document.createElement("th");
    th.textContent = chunk < 0 ? "chunk" : many ? "" : chunk;
    head.append(th);
  }
  const body = table.createTBody();
  for (let rank = 0; rank < n; ++rank) {
    const row = body.insertRow();
    const th = document.createElement("th");
    th.textContent = `rank ${rank}`;
    row.append(th);
    cells.push([...Array(data.num_chunks)].map(() => row.insertCell()));
  }
  for (let rank = 0; rank < n; ++rank) {
    const span = document.createElement("span");
    span.textContent = `rank ${rank}`;
    span.style.background = color(rank);
    at("legend").append(span);
  }
  // What does not shrink goes below the ring rather than beyond the edge.
  if (many) table.parentElement.style.flexBasis = `${table.offsetWidth}px`;
}

function stateAfter(step) {
  const state = data.initial.map((row) => row.map(bits));
  for (const { changes } of data.steps.slice(0, step)) {
    for (const [rank, chunk, hex] of changes) state[rank][chunk] = bits(hex);
  }
  return state;
}

function paintTable(step) {
  const changed = new Set();
  for (const [rank, chunk] of step > 0 ? data.steps[step - 1].changes : []) {
    changed.add(rank * data.num_chunks + chunk);
  }
  stateAfter(step).forEach((row, rank) =>
    row.forEach((mask, chunk) => {
      const cell = cells[rank][chunk];
      const held = sources(mask).join("+");
      if (cell.dataset.sources !== held) {
        cell.dataset.sources = held;
        cell.style.background = stripes(mask);
        cell.title = held ? `chunk ${chunk}: of rank ${held}` : `chunk ${chunk}: nothing yet`;
      }
      cell.classList.toggle("complete", mask === complete[chunk]);
      cell.classList.toggle("now", changed.has(rank * data.num_chunks + chunk));
    }),
  );
}

// ---- The ring of ranks

const RADIUS = 95;
const size = Math.min(16, 150 / n + 3); // of a rank's circle
const place = (rank) => {
  const angle = (2 * Math.PI * rank) / n - Math.PI / 2;
  return [RADIUS * Math.cos(angle), RADIUS * Math.sin(angle)];
};

function element(parent, name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

let arrows;
let tokens; // above the circles

function buildRing() {
  const marker = element(element(at("ring"), "defs", {}), "marker", {
    id: "head", viewBox: "0 0 10 10", refX: 9, refY: 5,
    markerWidth: 5, markerHeight: 5, orient: "auto-start-reverse",
  });
  element(marker, "polygon", { points: "0,1 10,5 0,9", fill: "context-stroke" });
  arrows = element(at("ring"), "g", { class: "sent" });
  for (let rank = 0; rank < n; ++rank) {
    const [x, y] = place(rank);
    element(at("ring"), "circle", { class: "rank", cx: x, cy: y, r: size, fill: color(rank) });
    element(at("ring"), "text", { class: "rank-name", x, y, "font-size": size }, rank);
  }
  tokens = element(at("ring"), "g", { class: "sent" });
}

function label(move) {
  if (move.count === 0) return "·";
  return move.count === 1 ? `${move.first}` : `${move.first}–${move.first + move.count - 1}`;
}

// Arrows bend to the left, so that two that go to and fro lie apart. Returns how to put all tokens
// at a part of their way, on which they touch neither rank's circle.
function drawArrows(step) {
  arrows.replaceChildren();
  tokens.replaceChildren();
  at("ring").classList.remove("coming");
  if (step < 0) return () => {};
  const travelling = data.steps[step].moves.map((move) => {
    const [x0, y0] = place(move.from);
    const [x1, y1] = place(move.to);
    const length = Math.hypot(x1 - x0, y1 - y0);
    const [ux, uy] = [(x1 - x0) / length, (y1 - y0) / length];
    const gap = Math.min(size + 1, length / 3);
    const bend = length * 0.12;
    const [mx, my] = [(x0 + x1) / 2 + uy * bend, (y0 + y1) / 2 - ux * bend];
    const path = element(arrows, "path", {
      d: `M${x0 + ux * gap} ${y0 + uy * gap} Q${mx} ${my} ${x1 - ux * gap} ${y1 - uy * gap}`,
      "marker-end": "url(#head)",
    });
    const text = label(move);
    const token = element(tokens, "g", { class: "token" });
    const height = Math.max(4, size * 0.75);
    const width = height * Math.max(1, 0.7 * text.length);
    element(token, "rect", {
      x: -width / 2, y: -height / 2, width, height, rx: 1.5,
    });
    element(token, "text", { "font-size": height * 0.8 }, text);
    const way = path.getTotalLength();
    return { path, token, way, margin: Math.min(way / 2, Math.hypot(width, height) / 2) };
  });
  return (part) => {
    for (const { path, token, way, margin } of travelling) {
      const point = path.getPointAtLength(margin + (way - 2 * margin) * part);
      token.setAttribute("transform", `translate(${point.x} ${point.y})`);
    }
  };
}

// ---- Going through the steps

function phaseOf(step) {
  let first = 0;
  for (const [name, count] of data.phases) {
    if (step < first + count) return name;
    first += count;
  }
  return "";
}

function describe(step) {
  const total = data.steps.length;
  const name = step > 0 ? phaseOf(step - 1) : "";
  at("caption").textContent =
    step === 0
      ? `before the first of ${total} steps`
      : `step ${step - 1}${name ? `, ${name}` : ""} (${step} of ${total})`;
  const moves = step > 0 ? data.steps[step - 1].moves : [];
  at("moves").replaceChildren(
    ...moves.map((move) => {
      const item = document.createElement("li");
      item.textContent = move.text;
      return item;
    }),
  );
  at("slider").value = step;
}

// Shows the state after `step` steps, at once.
function settle(step) {
  cancelAnimationFrame(frame);
  frame = 0;
  shown = step;
  describe(step);
  drawArrows(Math.min(Math.max(0, step - 1), data.steps.length - 1))(0.5);
  at("ring").classList.toggle("coming", step === 0);
  paintTable(step);
  document.body.dataset.step = step; // for whoever drives the page
}

function travel() {
  if (shown === data.steps.length) return setPlaying(false);
  const step = shown + 1;
  if (calm || data.steps[shown].moves.length > MOST_TOKENS) return arrive(step);
  describe(step);
  const put = drawArrows(step - 1);
  const duration = 1200 / 2 ** Number(at("speed").value);
  const start = performance.now();
  const move = (now) => {
    const part = Math.min(1, Math.max(0, (now - start) / duration));
    put(part);
    if (part < 1) {
      frame = requestAnimationFrame(move);
    } else {
      arrive(step);
    }
  };
  frame = requestAnimationFrame(move);
}

let timer = 0;
function arrive(step) {
  settle(step);
  const pause = 600 / 2 ** Number(at("speed").value);
  if (playing) timer = setTimeout(travel, pause);
}

function setPlaying(value) {
  playing = value;
  clearTimeout(timer);
  at("play").textContent = playing ? "⏸ pause" : "▶︎ play";
  if (!playing) return frame ? settle(shown + 1) : undefined;
  if (shown === data.steps.length) settle(0);
  travel();
}

function go(step) {
  setPlaying(false);
  settle(Math.min(data.steps.length, Math.max(0, step)));
}

function next() {
  setPlaying(false); // what is on its way arrives
  if (!frame) travel();
}

// A page that shows this one beside another (beside.js) drives it: shows the state after `step`
// steps, with the tokens of the next at a `part` of their way.
let driven = -1;
let put = () => {};
function drive(step, part) {
  if (driven !== step) {
    driven = step;
    settle(step);
    if (step === data.steps.length || data.steps[step].moves.length > MOST_TOKENS) {
      put = () => {};
    } else {
      describe(step + 1);
      put = drawArrows(step);
    }
  }
  put(part);
}

const actions = {
  first: () => go(0),
  back: () => go(frame ? shown : shown - 1),
  play: () => setPlaying(!playing),
  next,
  last: () => go(data.steps.length),
  theme: () => {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  },
};
for (const [id, action] of Object.entries(actions)) at(id).addEventListener("click", action);
at("slider").addEventListener("input", () => go(Number(at("slider").value)));

const keys = {
  ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last", " ": "play", d: "theme",
};
addEventListener("keydown", (event) => {
  if (driven >= 0) return void parent.dispatchEvent(new KeyboardEvent("keydown", event));
  const action = keys[event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.id === "speed" && event.key !== "d") return;
  event.preventDefault();
  actions[action]();
});

at("slider").max = data.steps.length;
if (matchMedia("(prefers-color-scheme: dark)").matches) {
  document.documentElement.dataset.theme = "dark";
}
buildTable();
buildRing();
settle(0);
