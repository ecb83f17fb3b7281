// A training run as it goes on: asks every few seconds and draws what came.
"use strict";
(() => {
  const EVERY = 3000;
  const find = (id) => document.getElementById(id);
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const draw = (svg, tag, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
    if (text !== undefined) element.textContent = text;
    svg.append(element);
  };

  function ticks(low, high) {
    const step = 10 ** Math.floor(Math.log10((high - low) || 1));
    const wide = [1, 2, 5, 10].map((k) => k * step).find((s) => (high - low) / s <= 5) ?? step;
    const first = Math.ceil(low / wide);
    return Array.from({ length: Math.floor(high / wide) - first + 1 }, (_, i) => Number(((first + i) * wide).toPrecision(8)));
  }

  function chart(svg, points, steps, say) {
    svg.replaceChildren();
    if (!points.length) { draw(svg, "text", { x: 280, y: 150, "text-anchor": "middle" }, "nothing yet"); return; }
    const values = points.map(([, v]) => v);
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (low === high) { low -= Math.abs(low) / 10 || 0.1; high += Math.abs(high) / 10 || 0.1; }
    const end = Math.max(steps || 0, points.at(-1)[0]);
    const at = ([s, v]) => [56 + (s / end) * 490, 262 - ((v - low) / (high - low)) * 240];
    for (const v of ticks(low, high)) {
      const [, y] = at([0, v]);
      draw(svg, "line", { class: "grid", x1: 56, x2: 546, y1: y, y2: y });
      draw(svg, "text", { x: 50, y: y + 4, "text-anchor": "end" }, say(v));
    }
    for (const s of ticks(0, end)) draw(svg, "text", { x: at([s, low])[0], y: 284, "text-anchor": "middle" }, s);
    draw(svg, "polyline", { class: "curve", points: points.map((p) => at(p).map((v) => v.toFixed(1)).join(",")).join(" ") });
    const [x, y] = at(points.at(-1));
    draw(svg, "circle", { class: "dot", cx: x, cy: y, r: 4 });
  }

  const percent = (v) => (v == null ? "-" : (100 * v).toFixed(2));

  function figures(state) {
    const { loss, mIoU } = state.curves;
    const best = mIoU.length ? Math.max(...mIoU.map(([, v]) => v)) : null;
    const share = state.steps ? Math.round((100 * state.done) / state.steps) : null;
    const quiet = state.idle > 120 ? `nothing new for ${Math.round(state.idle / 60)} min` : "running";
    return [
      ["step", state.steps ? `${state.done} / ${state.steps}` : state.done, share == null ? "" : `${share} %`],
      ["training loss", loss.length ? loss.at(-1)[1].toPrecision(4) : "-", "of the last steps"],
      ["mIoU", percent(mIoU.at(-1)?.[1]), "percent, at the last validation"],
      ["best mIoU", percent(best), "percent, so far"],
      ["state", state.finished ? "finished" : state.idle == null ? "starting" : quiet, ""],
    ];
  }

  function show(state) {
    find("what").textContent = `${state.model} on ${state.data}`;
    find("figures").replaceChildren(...figures(state).map(([name, value, meaning]) => make(
      "li", {}, name, make("b", { textContent: value }), make("small", { textContent: meaning }),
    )));
    chart(find("loss"), state.curves.loss, state.steps, (v) => v);
    chart(find("miou"), state.curves.mIoU, state.steps, (v) => `${+(100 * v).toFixed(3)} %`);
    const classes = Object.entries(state.classes);
    find("classes-card").hidden = !classes.length;
    find("classes").replaceChildren(...classes.map(([name, value]) => {
      const fill = make("i");
      fill.style.width = `${100 * (value ?? 0)}%`;
      const bar = make("span", { className: "bar-track" }, fill);
      return make("tr", {}, make("td", { textContent: name }), make("td", { textContent: percent(value) }), make("td", {}, bar));
    }));
    showSamples(state.samples);
    document.documentElement.dataset.ready = "yes";
  }

  let shown = "";
  function showSamples(samples) {
    const now = JSON.stringify(samples);
    if (now === shown) return;
    shown = now;
    find("samples-card").hidden = !samples.length;
    find("samples").replaceChildren(...samples.map(({ name, step }, number) => make(
      "figure", {},
      make("img", { src: `samples/${number}?step=${step}`, alt: `${name}: image, truth and prediction at step ${step}` }),
      make("figcaption", { textContent: `${name}, step ${step}` }),
    )));
  }

  async function follow() {
    try {
      const response = await fetch("run.json");
      const state = await response.json();
      if (!response.ok) throw new Error(state.error);
      find("problem").hidden = true;
      show(state);
    } catch (error) {
      find("problem").textContent = `No answer: ${error.message}. The page goes on asking.`;
      find("problem").hidden = false;
    }
    setTimeout(follow, EVERY);
  }
  follow();
})();
