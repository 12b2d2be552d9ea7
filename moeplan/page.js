"use strict";
// Draws the timelines and the expert map of one report. No library, no network.
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const stage = document.getElementById("stage");
const canvas = document.getElementById("time");
const tip = document.getElementById("tip");
const dark = matchMedia("(prefers-color-scheme: dark)");
const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const LANE = 36, HEAD = 24, RULER = 16, GAP = 12, AXIS = 26;

function time(ns) {
  const a = Math.abs(ns);
  if (a < 1e3) return ns.toFixed(0) + " ns";
  if (a < 1e6) return +(ns / 1e3).toPrecision(4) + " µs";
  if (a < 1e9) return +(ns / 1e6).toPrecision(4) + " ms";
  return +(ns / 1e9).toPrecision(4) + " s";
}
function bytes(n) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (n < 1024) return (unit === "B" ? n : n.toFixed(1)) + " " + unit;
    n /= 1024;
  }
  return n.toFixed(2) + " GiB";
}

// ---- tracks: events by lane, sorted by start; the furthest end so far makes searching sound
for (const track of data.tracks) {
  const e = track.events;
  track.by = track.lanes.map(() => []);
  for (let i = 0; i < e.start.length; i++) track.by[e.lane[i]].push(i);
  track.reach = track.by.map((ids) => {
    ids.sort((a, b) => e.start[a] - e.start[b]);
    let most = 0;
    return ids.map((i) => (most = Math.max(most, e.start[i] + e.span[i])));
  });
  track.stages = [];
  let before = "";
  for (const i of track.by[0]) {
    const key = e.pass[i] + ":" + e.layer[i];
    if (e.layer[i] >= 0 && key !== before) {
      track.stages.push([e.start[i], e.layer[i] === track.head ? "head" : "L" + e.layer[i]]);
      before = key;
    }
  }
}
const passes = data.tracks[0] ? data.tracks[0].passes.map((p) => p[0]) : [];
let shown = null; // the pass that the tracks are aligned at; null: the start of the run
let view = [0, 1];

function passOf(track, index) { return track.passes.find((p) => p[0] === index); }
function origin(track) {
  const p = shown === null ? null : passOf(track, shown);
  return p ? p[1] : 0;
}
function fit() {
  let span = 1;
  for (const track of data.tracks) {
    const p = shown === null ? null : passOf(track, shown);
    span = Math.max(span, p ? p[2] - p[1] : shown === null ? track.end : 0);
  }
  view = [-0.01 * span, 1.01 * span];
}
function firstAfter(reach, t) { // first event that ends after t
  let low = 0, high = reach.length;
  while (low < high) { const mid = (low + high) >> 1; if (reach[mid] <= t) low = mid + 1; else high = mid; }
  return low;
}

// ---- drawing
let gutter = 72, width = 0, height = 0, tops = [];
function hatch(ctx, color) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const c = tile.getContext("2d");
  c.strokeStyle = color; c.lineWidth = 1.4;
  c.beginPath();
  c.moveTo(-1, 7); c.lineTo(7, -1); c.moveTo(-1, 1); c.lineTo(1, -1); c.moveTo(5, 7); c.lineTo(7, 5);
  c.stroke();
  return ctx.createPattern(tile, "repeat");
}
function draw() {
  const ratio = devicePixelRatio || 1;
  width = canvas.clientWidth;
  gutter = width < 560 ? 56 : 72;
  tops = []; height = 0;
  for (const track of data.tracks) { tops.push(height); height += HEAD + RULER + track.lanes.length * LANE + GAP; }
  height += AXIS;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  const paint = data.groups.map((g, i) => css("--g" + i));
  const waits = hatch(ctx, paint[4]);
  const scale = (width - gutter) / (view[1] - view[0]);
  const x = (t) => gutter + (t - view[0]) * scale;
  data.tracks.forEach((track, at) => {
    const zero = origin(track), top = tops[at];
    ctx.fillStyle = css("--ink"); ctx.font = "600 13px system-ui, sans-serif"; ctx.textBaseline = "middle"; ctx.textAlign = "left";
    ctx.fillText(track.name, 0, top + HEAD / 2);
    const named = ctx.measureText(track.name).width + 10;
    ctx.font = "12px system-ui, sans-serif";
    ctx.save();
    ctx.beginPath(); ctx.rect(gutter, top, width - gutter, HEAD + RULER + track.lanes.length * LANE); ctx.clip();
    track.lanes.forEach((lane, row) => {
      const y = top + HEAD + RULER + row * LANE;
      ctx.fillStyle = css("--track"); ctx.fillRect(gutter, y, width - gutter, LANE - 4);
      drawLane(ctx, track, row, y, zero, x, scale, paint, waits);
    });
    ctx.fillStyle = css("--soft"); ctx.strokeStyle = css("--line");
    drawStages(ctx, track, top, zero, x);
    let free = Math.max(gutter, named);
    for (const [index, start, end] of track.passes) {
      const left = x(start - zero), right = x(end - zero);
      const label = index === 0 ? "prefill" : "pass " + index;
      if (right < gutter || left > width || left + ctx.measureText(label).width < free) continue;
      const line = left < named ? HEAD : 4; // not through the name
      ctx.fillStyle = css("--soft"); ctx.fillRect(left, top + line, 1, HEAD + RULER - line);
      const px = Math.max(left + 4, free);
      if (px + ctx.measureText(label).width < Math.min(right, width)) { ctx.fillText(label, px, top + HEAD / 2); free = px + ctx.measureText(label).width + 8; }
    }
    ctx.restore();
    ctx.fillStyle = css("--soft");
    track.lanes.forEach((lane, row) => ctx.fillText(lane, 0, top + HEAD + RULER + row * LANE + LANE / 2 - 2));
  });
  axis(ctx, x);
  place();
}
// Layers with room for their label come first; the others are labelled where some is left.
function drawStages(ctx, track, top, zero, x) {
  const low = top + HEAD, tall = RULER + track.lanes.length * LANE - 4, taken = [];
  const seen = track.stages.map(([t, label], k) => {
    const left = x(t - zero), next = track.stages[k + 1];
    return { left, room: (next ? x(next[0] - zero) : Infinity) - left, label, wide: ctx.measureText(label).width + 8 };
  }).filter((s) => s.left >= gutter - 1 && s.left < width);
  for (const one of [...seen.filter((s) => s.room >= s.wide), ...seen.filter((s) => s.room < s.wide)]) {
    if (one.left + one.wide - 5 > width || taken.some(([from, to]) => one.left < to && one.left + one.wide > from)) continue;
    taken.push([one.left, one.left + one.wide]);
    ctx.beginPath(); ctx.moveTo(one.left, low); ctx.lineTo(one.left, low + tall); ctx.stroke();
    ctx.fillText(one.label, one.left + 3, low + RULER / 2);
  }
}
// A wide event is a box; narrow ones share each pixel column by how much of it they fill.
function drawLane(ctx, track, row, y, zero, x, scale, paint, waits) {
  const e = track.events, ids = track.by[row], tall = LANE - 4;
  const columns = Math.ceil(width - gutter) + 1, share = new Map();
  for (let k = firstAfter(track.reach[row], view[0] + zero); k < ids.length; k++) {
    const i = ids[k], t = e.start[i] - zero;
    if (t > view[1]) break;
    const group = data.kinds[e.kind[i]][1], left = x(t), wide = e.span[i] * scale;
    if (left + wide < gutter) continue;
    if (wide >= 3) {
      ctx.fillStyle = group === 4 ? waits : paint[group];
      ctx.fillRect(left, y, wide, tall);
      if (group === 4) { ctx.strokeStyle = paint[4]; ctx.lineWidth = 1; ctx.strokeRect(left + 0.5, y + 0.5, Math.max(wide - 1, 0.5), tall - 1); }
      else if (wide > 4) { ctx.fillStyle = css("--card"); ctx.globalAlpha = 0.7; ctx.fillRect(left + wide - 1, y, 1, tall); ctx.globalAlpha = 1; }
      if (wide > 30 && group !== 4 && e.item[i] >= 0 && (group === 1 || group === 6 || group === 7)) {
        ctx.fillStyle = group === 6 || root.dataset.theme === "dark" ? "#1c1d21" : "#fff";
        ctx.fillText("e" + e.item[i], Math.max(left, gutter) + 4, y + tall / 2);
      }
    } else {
      const from = left - gutter, to = from + wide;
      for (let column = Math.max(Math.floor(from), 0); column < Math.min(to, columns); column++) {
        if (!share.has(column)) share.set(column, new Float32Array(data.groups.length));
        share.get(column)[group] += Math.min(to, column + 1) - Math.max(from, column);
      }
    }
  }
  for (const [column, parts] of share) {
    let up = y + tall;
    parts.forEach((part, group) => {
      const h = Math.min(part * tall, up - y);
      if (h <= 0) return;
      ctx.fillStyle = group === 4 ? waits : paint[group];
      ctx.fillRect(gutter + column, up - h, 1, h);
      up -= h;
    });
  }
}
function axis(ctx, x) {
  const y = height - AXIS, span = view[1] - view[0], wish = span / Math.max((width - gutter) / 90, 1);
  const power = 10 ** Math.floor(Math.log10(wish));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= wish);
  ctx.strokeStyle = css("--line"); ctx.fillStyle = css("--soft"); ctx.textAlign = "center";
  ctx.beginPath(); ctx.moveTo(gutter, y); ctx.lineTo(width, y); ctx.stroke();
  for (let t = Math.ceil(view[0] / step) * step; t <= view[1]; t += step) {
    const px = x(t);
    ctx.beginPath(); ctx.moveTo(px, y); ctx.lineTo(px, y + 4); ctx.stroke();
    if (px >= gutter && px < width - 22) ctx.fillText(t === 0 ? "0" : time(Math.round(t)), px, y + 14);
  }
  ctx.textAlign = "left";
}
function place() {
  const span = view[1] - view[0];
  const name = shown === null ? "whole run" : shown === 0 ? "prefill pass" : "pass " + shown;
  document.getElementById("where").textContent = name + ", " + time(span) + " wide" + (shown === null ? "" : ", aligned at its start");
}
let waiting = false;
function redraw() { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); } }

// ---- moving about
const limits = () => {
  let end = 1;
  for (const track of data.tracks) end = Math.max(end, track.end);
  return end;
};
function zoom(factor, at) {
  const end = limits(), span = Math.min(Math.max((view[1] - view[0]) * factor, 200), end * 2.2);
  const share = (at - view[0]) / (view[1] - view[0]);
  view = [at - share * span, at + (1 - share) * span];
  redraw();
}
function move(part) { const d = part * (view[1] - view[0]); view = [view[0] + d, view[1] + d]; redraw(); }
function step(by) {
  if (!passes.length) return;
  const at = shown === null ? (by > 0 ? -1 : passes.length) : passes.indexOf(shown);
  shown = passes[Math.min(Math.max(at + by, 0), passes.length - 1)];
  fit(); redraw();
}
const middle = () => (view[0] + view[1]) / 2;
const deeds = {
  all: () => { shown = null; fit(); redraw(); }, prev: () => step(-1), next: () => step(1),
  in: () => zoom(0.6, middle()), out: () => zoom(1 / 0.6, middle()),
};
document.querySelectorAll("[data-do]").forEach((b) => b.addEventListener("click", () => deeds[b.dataset.do]()));
stage.addEventListener("keydown", (event) => {
  const keys = { ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15), "+": deeds.in, "=": deeds.in, "-": deeds.out, "[": deeds.prev, "]": deeds.next, Home: deeds.all };
  if (keys[event.key] && !event.ctrlKey && !event.metaKey) { keys[event.key](); event.preventDefault(); }
});
const timeAt = (px) => view[0] + ((px - gutter) / (width - gutter)) * (view[1] - view[0]);
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / 800);
  else zoom(Math.exp(event.deltaY / 400), timeAt(event.offsetX));
}, { passive: false });
const fingers = new Map();
canvas.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, event.offsetX); canvas.setPointerCapture(event.pointerId); canvas.classList.add("held"); });
for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => { fingers.delete(event.pointerId); canvas.classList.remove("held"); });
canvas.addEventListener("pointermove", (event) => {
  const before = fingers.get(event.pointerId);
  if (before === undefined) { hover(event.offsetX, event.offsetY); return; }
  if (fingers.size === 2) {
    const [a, b] = [...fingers.values()], other = before === a ? b : a;
    zoom(Math.abs(before - other) / Math.max(Math.abs(event.offsetX - other), 4), timeAt((before + other) / 2));
  } else move((before - event.offsetX) / (width - gutter));
  fingers.set(event.pointerId, event.offsetX);
  tip.style.display = "none";
});
canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
canvas.addEventListener("click", (event) => hover(event.offsetX, event.offsetY));

function hover(px, py) {
  tip.style.display = "none";
  if (px < gutter) return;
  data.tracks.forEach((track, at) => {
    const row = Math.floor((py - tops[at] - HEAD - RULER) / LANE);
    if (row < 0 || row >= track.lanes.length) return;
    const zero = origin(track), t = timeAt(px) + zero, slack = 1.5 * (view[1] - view[0]) / (width - gutter);
    const e = track.events, ids = track.by[row];
    let hit = -1;
    for (let k = firstAfter(track.reach[row], t - slack); k < ids.length && e.start[ids[k]] <= t + slack; k++) {
      const i = ids[k];
      if (e.start[i] <= t && t < e.start[i] + e.span[i]) hit = i;
      else if (hit < 0 && e.start[i] + e.span[i] > t - slack) hit = i;
    }
    if (hit >= 0) show(tip, words(track, hit, zero), px, py, stage);
  });
}
function words(track, i, zero) {
  const e = track.events, kind = data.kinds[e.kind[i]][0], lines = [];
  const where = e.layer[i] < 0 ? "embedding" : e.layer[i] === track.head ? "head" : "layer " + e.layer[i];
  const thing = e.item[i] < 0 ? "" : kind === "attention" ? ", batch " + e.item[i] : e.layer[i] === track.head ? ", tile " + e.item[i] : ", expert " + e.item[i];
  lines.push(kind.replaceAll("_", " ") + " · " + where + thing);
  lines.push(time(e.span[i]) + ", from " + time(e.start[i] - zero));
  if (e.rows[i]) lines.push(e.rows[i] + (e.rows[i] === 1 ? " row" : " rows"));
  if (e.bytes[i]) lines.push(bytes(e.bytes[i]) + (e.span[i] ? ", " + (e.bytes[i] / e.span[i]).toPrecision(3) + " GB/s" : ""));
  lines.push(e.pass[i] === 0 ? "prefill pass" : "pass " + e.pass[i]);
  return lines.join("\n");
}
function show(box, text, px, py, inside) {
  box.textContent = text;
  box.style.display = "block";
  const right = inside.clientWidth - box.offsetWidth - 4;
  box.style.left = Math.max(0, Math.min(px + 14, right)) + "px";
  box.style.top = (py + box.offsetHeight + 20 > inside.clientHeight ? py - box.offsetHeight - 10 : py + 16) + "px";
}

// ---- the expert map: a row a layer, a cell an expert
const heat = document.getElementById("heat"), map = data.experts;
function cell() { return Math.min(Math.max(Math.floor((heat.clientWidth - 40) / map.columns), 3), 26); }
function drawHeat() {
  if (!heat || !map) return;
  const ratio = devicePixelRatio || 1, size = cell(), tall = Math.max(size, 10);
  heat.style.height = map.rows.length * tall + "px";
  heat.width = Math.round(heat.clientWidth * ratio); heat.height = Math.round(map.rows.length * tall * ratio);
  const ctx = heat.getContext("2d");
  ctx.scale(ratio, ratio); ctx.font = "11px system-ui, sans-serif"; ctx.textBaseline = "middle";
  map.rows.forEach((layer, row) => {
    const y = row * tall;
    if (tall >= 12 || row % 4 === 0) { ctx.globalAlpha = 1; ctx.fillStyle = css("--soft"); ctx.fillText("L" + layer.layer, 0, y + tall / 2); }
    layer.share.forEach((share, expert) => {
      const x = 40 + expert * size, w = size - 1, h = tall - 1;
      ctx.globalAlpha = 1; ctx.fillStyle = css("--cold"); ctx.fillRect(x, y, w, h);
      ctx.globalAlpha = Math.min(share, 1); ctx.fillStyle = css("--hot"); ctx.fillRect(x, y, w, h);
      ctx.globalAlpha = 1;
      const mark = layer.mark[expert];
      if (size < 8) { // a frame would hide the cell
        ctx.fillStyle = css("--ink");
        if (mark !== "-") ctx.fillRect(x, mark === "r" ? y + h - 2 : y, w, 2);
        return;
      }
      if (mark === "r") { ctx.strokeStyle = css("--ink"); ctx.lineWidth = 2; ctx.strokeRect(x + 1, y + 1, w - 2, h - 2); }
      if (mark === "p") { ctx.fillStyle = css("--ink"); ctx.beginPath(); ctx.moveTo(x, y); ctx.lineTo(x + w * 0.55, y); ctx.lineTo(x, y + h * 0.55); ctx.fill(); }
    });
  });
}
if (heat && map) {
  const box = document.getElementById("heattip");
  heat.addEventListener("pointermove", (event) => {
    const size = cell(), tall = Math.max(size, 10), row = map.rows[Math.floor(event.offsetY / tall)];
    const expert = Math.floor((event.offsetX - 40) / size);
    if (!row || expert < 0 || expert >= row.share.length) { box.style.display = "none"; return; }
    const how = { r: "stays in memory", p: "a candidate to be copied before the router speaks" }[row.mark[expert]] || "copied on demand";
    show(box, "layer " + row.layer + ", expert " + expert + "\n" + how + "\n" + row.tokens[expert] + " " + map.unit, event.offsetX, event.offsetY, heat.parentElement);
  });
  heat.addEventListener("pointerleave", () => { box.style.display = "none"; });
}

// ---- theme, legend, start
const used = new Set();
for (const track of data.tracks) for (const k of track.events.kind) used.add(data.kinds[k][1]);
const legend = document.getElementById("legend");
data.groups.forEach((label, group) => {
  if (!used.has(group)) return;
  const item = document.createElement("li"), chip = document.createElement("i");
  if (group === 4) chip.className = "hatch"; else chip.style.background = "var(--g" + group + ")";
  item.append(chip, label);
  legend.append(item);
});
const button = document.getElementById("theme"); // without one the system's theme counts
function theme(name) {
  root.dataset.theme = name;
  if (button) document.getElementById("dark").media = name === "dark" ? "all" : "not all";
  redraw(); drawHeat();
}
if (button) button.addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
shown = passes.length > 1 ? passes[1] : null; // prefill is long; a decode pass shows the rhythm
if (location.hash === "#all") shown = null;
if (location.hash.startsWith("#pass=")) shown = passes.includes(+location.hash.slice(6)) ? +location.hash.slice(6) : null;
root.dataset.theme = dark.matches ? "dark" : "light";
fit(); draw(); drawHeat();
addEventListener("resize", () => { redraw(); drawHeat(); });
