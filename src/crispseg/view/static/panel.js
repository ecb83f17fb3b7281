// The panel beside the map: which layer lies where, opacity, and the classes with their shares.
"use strict";
(() => {
  const { about, answers } = crisp;
  const find = (id) => document.getElementById(id);
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };

  function themes() {
    const nothing = about.image ? "Image alone" : "Nothing";
    return [{ id: "", name: nothing }, ...about.themes];
  }

  function fillSelects() {
    for (const side of ["left", "right"]) {
      const select = find(`${side}-theme`);
      select.append(...themes().map((theme) => make("option", { value: theme.id, textContent: theme.name })));
      select.addEventListener("change", () => choose(side, select.value));
    }
  }

  async function choose(side, theme) {
    const pane = crisp.panes[side === "left" ? 0 : 1];
    find(`${side}-theme`).value = theme;
    find(`${side}-name`).textContent = themes().find((each) => each.id === theme).name;
    await pane.show(theme);
    find("ramp-section").hidden = !crisp.panes.some((each) => each.theme === "confidence");
  }

  function nextTheme() {
    const names = themes().map((theme) => theme.id);
    const now = names.indexOf(crisp.panes[1].theme);
    return choose("right", names[(now + 1) % names.length]);
  }

  function fade(value) {
    crisp.opacity = Math.max(0, Math.min(100, value)) / 100;
    find("opacity").value = String(100 * crisp.opacity);
    find("opacity-value").textContent = `${Math.round(100 * crisp.opacity)} %`;
    for (const pane of crisp.panes ?? []) pane.fade();
  }

  function fillClasses() {
    find("classes").append(...about.classes.map((c, number) => {
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = c.colour;
      const box = make("input", { type: "checkbox", checked: true });
      box.addEventListener("change", () => turn([c.id], box.checked));
      const key = number < 9 ? `key ${number + 1}` : "";
      const item = make("li", {}, make(
        "label", { title: key }, box, swatch,
        make("span", { className: "name", textContent: c.name }), make("span", { className: "share" }),
        make("span", { className: "bar-track" }, make("i")), make("span", { className: "area" }),
      ));
      item.dataset.id = String(c.id);
      return item;
    }));
  }

  function turn(ids, on) {
    for (const id of ids) {
      if (on) crisp.off.delete(id); else crisp.off.add(id);
      find("classes").querySelector(`[data-id="${id}"] input`).checked = on;
    }
    return Promise.all(crisp.panes.map((pane) => pane.recolour()));
  }

  const turnAll = (on) => turn(about.classes.map((c) => c.id), on);

  function toggle(number) {
    const c = about.classes[number];
    return c && turn([c.id], crisp.off.has(c.id));
  }

  function area(value, unit) {
    const digits = { maximumFractionDigits: 2 };
    if (unit !== "m2") return `${value.toLocaleString("en")} px`;
    if (value >= 1e6) return `${(value / 1e6).toLocaleString("en", digits)} km²`;
    if (value >= 1e4) return `${(value / 1e4).toLocaleString("en", digits)} ha`;
    return `${value.toLocaleString("en", digits)} m²`;
  }

  const percent = (share) => `${(100 * share).toFixed(2)} %`;

  async function count() {
    let state;
    try {
      state = await answers.legend();
    } catch (error) {
      crisp.explain(error);
      return;
    }
    const said = find("counting");
    if (state.problem) {
      said.textContent = state.problem;
    } else if (!state.done) {
      said.textContent = `Counting every pixel: ${Math.round(100 * state.progress)} %`;
      setTimeout(count, 400);
    } else {
      said.textContent = state.maps.b ? "Share and area in both maps, of what has data." : "Share and area of what has data.";
      showCounts(state);
    }
  }

  function showCounts({ maps, unit }) {
    for (const row of maps.a) {
      const item = find("classes").querySelector(`[data-id="${row.id}"]`);
      const other = maps.b?.find((each) => each.id === row.id);
      const both = (say) => [row, other].filter(Boolean).map(say).join(" | ");
      item.dataset.pixels = String(row.pixels);
      item.querySelector(".share").textContent = both((each) => percent(each.share));
      item.querySelector(".area").textContent = both((each) => area(each.area, unit));
      item.querySelector("i").style.width = `${100 * row.share}%`;
    }
    document.documentElement.dataset.counted = "yes";
  }

  function drawRamp() {
    const context = find("ramp").getContext("2d");
    crisp.ramp().forEach((colour, i) => {
      context.fillStyle = `rgb(${colour.join(" ")})`;
      context.fillRect(i, 0, 1, 1);
    });
  }

  function start() {
    fillSelects();
    fillClasses();
    drawRamp();
    fade(Number(find("opacity").value));
    find("opacity").addEventListener("input", (event) => fade(Number(event.target.value)));
    find("all").addEventListener("click", () => turnAll(true));
    find("none").addEventListener("click", () => turnAll(false));
    count();
  }

  crisp.off = new Set();
  crisp.panel = { start, choose, nextTheme, fade, toggle, turnAll, make };
})();
