"use strict";
const plans = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const frames = [...document.querySelectorAll("iframe")];
const total = Math.max(...plans.map(({ ends }) => ends.at(-1) ?? 0));
const ends = [...new Set([0, ...plans.flatMap((plan) => plan.ends)])].sort((a, b) => a - b);
const DURATION = 12000; // ms, of all
const PAUSE = 600; // ms, between steps where nothing is to move
const bars = [];

let now = 0; // simulated seconds
let playing = false;
let frame = 0;

function readable(seconds) {
  const [unit, factor] = total < 1e-3 ? ["µs", 1e6] : total < 1 ? ["ms", 1e3] : ["s", 1];
  return `${(seconds * factor).toFixed(2)} ${unit}`;
}

function build() {
  for (const { name, ends } of plans) {
    const lane = document.createElement("div");
    lane.className = "lane";
    const title = document.createElement("span");
    title.textContent = `${name}: ${readable(ends.at(-1) ?? 0)}`;
    const rounds = document.createElement("div");
    rounds.className = "rounds";
    lane.append(title, rounds);
    at("lanes").append(lane);
    bars.push(
      ends.map((end, step) => {
        const begin = step > 0 ? ends[step - 1] : 0;
        const bar = document.createElement("span");
        bar.style.left = `${(100 * begin) / total}%`;
        bar.style.width = `${(100 * (end - begin)) / total}%`;
        bar.title = `step ${step}: ${readable(begin)} to ${readable(end)}`;
        rounds.append(bar);
        return bar;
      }),
    );
  }
}

// Each plan is shown as far as it has come at this time.
function show(seconds) {
  now = Math.min(total, Math.max(0, seconds));
  plans.forEach(({ ends }, index) => {
    const step = ends.filter((end) => end <= now).length;
    const begin = step > 0 ? ends[step - 1] : 0;
    const part = step < ends.length ? (now - begin) / (ends[step] - begin) : 0;
    frames[index].contentWindow.drive(step, part);
    bars[index].forEach((bar, at) => {
      bar.className = at < step ? "done" : at === step ? "now" : "";
    });
  });
  at("time").textContent = `${readable(now)} of ${readable(total)}`;
  at("slider").value = total > 0 ? now / total : 1;
  document.body.dataset.seconds = now; // for whoever drives the page
}

function setPlaying(value) {
  playing = value;
  cancelAnimationFrame(frame);
  at("play").textContent = playing ? "⏸ pause" : "▶︎ play";
  if (!playing) return;
  if (now >= total) show(0);
  let last = performance.now();
  const go = (time) => {
    const speed = 2 ** Number(at("speed").value);
    if (!calm) {
      show(now + (speed * total * Math.max(0, time - last)) / DURATION);
      last = time;
    } else if (time - last > PAUSE / speed) {
      show(following());
      last = time;
    }
    if (now >= total) return setPlaying(false);
    frame = requestAnimationFrame(go);
  };
  frame = requestAnimationFrame(go);
}

const following = () => ends.find((end) => end > now) ?? total;
const preceding = () => ends.findLast((end) => end < now) ?? 0;

function go(seconds) {
  setPlaying(false);
  show(seconds);
}

function setTheme(theme) {
  for (const one of [document, ...frames.map((each) => each.contentDocument)]) {
    one.documentElement.dataset.theme = theme;
  }
}

const actions = {
  first: () => go(0),
  back: () => go(preceding()),
  play: () => setPlaying(!playing),
  next: () => go(following()),
  last: () => go(total),
  theme: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
};
const keys = {
  ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last", " ": "play", d: "theme",
};

function fit() {
  for (const one of frames) {
    one.style.height = `${one.contentDocument.documentElement.scrollHeight + 4}px`;
  }
}

addEventListener("load", () => {
  for (const [id, action] of Object.entries(actions)) at(id).addEventListener("click", action);
  at("slider").addEventListener("input", () => go(total * Number(at("slider").value)));
  addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.id === "speed" && event.key !== "d") return;
    event.preventDefault();
    actions[action]();
  });
  for (const one of frames) one.contentDocument.documentElement.classList.add("driven");
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  build();
  show(0);
  fit();
  addEventListener("resize", fit);
});
