// Puts the map page together: panes, panel, keys, the answer to a click, coordinates and scale.
"use strict";
(() => {
  const { about, answers, panel } = crisp;
  const find = (id) => document.getElementById(id);
  const WORLD = 512 * 2 ** 17; // a scene without a reference system: pixels around the world (space.py)

  crisp.explain = async (error) => {
    let sentence = error?.message || String(error);
    if (error?.body) {
      try { sentence = JSON.parse(await error.body.text()).error ?? sentence; } catch { /* not ours */ }
    }
    find("problem").textContent = sentence;
    find("problem").hidden = false;
  };

  function where(at) {
    if (!about.pixels) return `${at.lat.toFixed(6)}, ${at.lng.toFixed(6)}`;
    const m = maplibregl.MercatorCoordinate.fromLngLat(at);
    return `row ${Math.floor((m.y - 0.5) * WORLD)}, column ${Math.floor((m.x - 0.5) * WORLD)}`;
  }

  function drawScale(map) {
    const middle = map.getContainer().clientHeight / 2;
    const [a, b] = [map.unproject([0, middle]), map.unproject([100, middle])];
    const flat = (at) => maplibregl.MercatorCoordinate.fromLngLat(at);
    const length = about.pixels ? (flat(b).x - flat(a).x) * WORLD : a.distanceTo(b);
    if (!(length > 0)) return;
    const power = 10 ** Math.floor(Math.log10(length));
    const round = [5, 2, 1].map((k) => k * power).find((v) => v <= length) ?? power;
    const unit = about.pixels ? `${round} px` : round >= 1000 ? `${round / 1000} km` : round >= 1 ? `${round} m` : `${round * 100} cm`;
    find("scale").textContent = unit;
    find("scale").style.width = `${(100 * round) / length}px`;
  }

  function row(term, text) {
    return [panel.make("dt", { textContent: term }), panel.make("dd", { textContent: text })];
  }

  async function ask(at) {
    let found;
    try { found = await answers.point(at); } catch (error) { crisp.explain(error); return; }
    const box = find("answer");
    const close = panel.make("button", { type: "button", textContent: "×" });
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => { box.hidden = true; });
    const names = Object.fromEntries(about.themes.map((theme) => [theme.id, theme.name]));
    const lines = found.inside ? [
      ...Object.entries(found.classes).flatMap(([key, name]) => row(names[key], name ?? "no data")),
      ...(found.confidence == null ? [] : row("Confidence", `${(100 * found.confidence).toFixed(1)} %`)),
      ...row("Pixel", `row ${found.row}, column ${found.column}`),
      ...(found.crs ? row(found.crs, `${found.x.toFixed(2)}, ${found.y.toFixed(2)}`) : []),
      ...(about.pixels ? [] : row("Lat, lon", where(at))),
      ...(found.values ? row("Image", found.values.map((v) => (v == null ? "-" : +v.toPrecision(6))).join(", ")) : []),
    ] : row("", "outside the map");
    box.replaceChildren(close, panel.make("dl", {}, ...lines));
    box.dataset.answer = JSON.stringify(found);
    box.hidden = false;
  }

  let asked = 0;
  let polygonsOn = about.polygons;
  async function showPolygons() {
    const mine = ++asked;
    const map = crisp.panes[1].map;
    let found = { type: "FeatureCollection", features: [] };
    if (polygonsOn) {
      try { found = await answers.polygons(map.getBounds(), map.getZoom()); } catch (error) { crisp.explain(error); }
    }
    if (mine !== asked) return;
    for (const pane of crisp.panes) pane.draw("polygons", found);
    const button = find("polygons");
    if (button) button.textContent = found.many ? "Polygons (come closer)" : "Polygons";
    crisp.polygonsShown = found.features.length;
  }

  function switchPolygons() {
    if (!about.polygons) return;
    polygonsOn = !polygonsOn;
    find("polygons").setAttribute("aria-pressed", String(polygonsOn));
    showPolygons();
  }

  const whole = () => crisp.panes[1].map.fitBounds(about.bounds, { padding: 24, animate: false });
  const full = () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen());
  const help = () => (find("help").open ? find("help").close() : find("help").showModal());
  const nextLayout = () => {
    const now = crisp.LAYOUTS.indexOf(find("stage").dataset.layout);
    crisp.layout(crisp.LAYOUTS[(now + 1) % crisp.LAYOUTS.length]);
  };
  const switchPanel = () => {
    const hidden = document.body.classList.toggle("hide-panel");
    find("panel-switch").setAttribute("aria-pressed", String(!hidden));
    for (const pane of crisp.panes) pane.map.resize();
  };
  const escape = () => { find("answer").hidden = true; if (crisp.marks.active) crisp.marks.toggle(); };

  const KEYS = {
    "[": () => crisp.cut(crisp.cutAt - 2), "]": () => crisp.cut(crisp.cutAt + 2),
    ",": () => panel.fade(100 * crisp.opacity - 10), ".": () => panel.fade(100 * crisp.opacity + 10),
    v: nextLayout, t: panel.nextTheme, p: switchPolygons, m: () => find("mark") && crisp.marks.toggle(), h: whole, f: full,
    l: switchPanel, d: () => switchTheme(), "?": help, 0: () => panel.turnAll(true), Escape: escape,
    "+": () => crisp.panes[1].map.zoomIn(), "-": () => crisp.panes[1].map.zoomOut(),
  };

  function onKey(event) {
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "checkbox";
    if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.key !== "Escape")) return;
    const onMap = event.target.classList.contains("maplibregl-canvas");
    if (onMap && (event.key === "+" || event.key === "-")) return; // the map knows them itself
    if (/^[1-9]$/.test(event.key)) panel.toggle(Number(event.key) - 1);
    else KEYS[event.key]?.();
  }

  function connect() {
    for (const name of crisp.LAYOUTS) find(name).addEventListener("click", () => crisp.layout(name));
    find("whole").addEventListener("click", whole);
    find("full").addEventListener("click", full);
    find("keys").addEventListener("click", help);
    find("panel-switch").addEventListener("click", switchPanel);
    find("polygons")?.addEventListener("click", switchPolygons);
    addEventListener("keydown", onKey);
    for (const { map } of crisp.panes) {
      map.on("click", (event) => { if (!crisp.marks.active) ask(event.lngLat); });
      map.on("mousemove", (event) => { find("coordinates").textContent = where(event.lngLat); });
    }
    const right = crisp.panes[1].map;
    right.on("move", () => drawScale(right));
    right.on("moveend", () => { if (about.polygons) showPolygons(); });
    drawScale(right);
  }

  async function start() {
    const worker = find("worker");
    if (worker) {
      const code = Uint8Array.from(atob(worker.textContent.trim()), (c) => c.charCodeAt(0));
      maplibregl.setWorkerUrl(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
    } else {
      maplibregl.setWorkerUrl(new URL(about.worker, location.href).href);
    }
    panel.start();
    crisp.cut(50);
    const two = about.themes.some((theme) => theme.id === "b");
    crisp.layout(two ? "side" : about.image ? "swipe" : "single");
    try {
      crisp.panes = ["left", "right"].map((name) => new crisp.Pane(name));
    } catch (error) {
      crisp.explain(new Error(`This browser cannot draw maps (WebGL is off or missing): ${error.message}`));
      return;
    }
    await Promise.all(crisp.panes.map((pane) => pane.start()));
    crisp.link(crisp.panes[0].map, crisp.panes[1].map);
    // whoever comes to a bad place wants to see what is true there
    const wanted = about.places.length && about.themes.some((theme) => theme.id === "truth") ? "truth" : "";
    await panel.choose("left", two ? "a" : wanted);
    await panel.choose("right", two ? "b" : "a");
    connect();
    crisp.marks.start();
    if (about.polygons) showPolygons();
    document.documentElement.dataset.ready = "yes";
  }

  start().catch((error) => crisp.explain(error));
})();
