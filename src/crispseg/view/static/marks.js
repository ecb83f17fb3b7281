// Rectangles on the map: places to look at, and windows that are marked for labelling.
"use strict";
(() => {
  const { about, answers } = crisp;
  const find = (id) => document.getElementById(id);
  const marked = []; // [west, south, east, north]
  let marking = false;
  let place = null;

  const ringOf = ([w, s, e, n]) => [[w, n], [e, n], [e, s], [w, s], [w, n]];
  const outline = (ring) => ({ type: "Feature", properties: {}, geometry: { type: "LineString", coordinates: ring } });

  function draw(unfinished) {
    const boxes = unfinished ? [...marked, unfinished] : marked;
    const features = boxes.map((box) => outline(ringOf(box)));
    if (place) features.push(outline(place.ring));
    for (const pane of crisp.panes) pane.draw("marks", { type: "FeatureCollection", features });
  }

  function list() {
    find("marks").replaceChildren(...marked.map((box, number) => {
      const remove = crisp.panel.make("button", { type: "button", textContent: "Remove" });
      remove.addEventListener("click", () => { marked.splice(number, 1); changed(); });
      const go = crisp.panel.make("button", { type: "button", textContent: `Window ${number + 1}` });
      go.addEventListener("click", () => goTo(ringOf(box)));
      return crisp.panel.make("li", { className: "pair" }, go, remove);
    }));
    const link = find("export");
    link.hidden = marked.length === 0;
    if (marked.length) link.href = answers.exportAddress(marked); else link.removeAttribute("href");
    find("marks-section").hidden = !marking && marked.length === 0;
  }

  function changed() { draw(); list(); }

  function mark(on) {
    marking = on;
    document.body.classList.toggle("marking", on);
    find("mark")?.setAttribute("aria-pressed", String(on));
    for (const pane of crisp.panes) pane.map.dragPan[on ? "disable" : "enable"]();
    list();
  }

  function listen(map) {
    let from = null;
    const box = (a, b) => [Math.min(a.lng, b.lng), Math.min(a.lat, b.lat), Math.max(a.lng, b.lng), Math.max(a.lat, b.lat)];
    const down = (event) => { if (marking) from = event.lngLat; };
    const move = (event) => { if (from) draw(box(from, event.lngLat)); };
    const up = (event) => {
      if (!from) return;
      const made = box(from, event.lngLat);
      from = null;
      const [a, b] = [map.project([made[0], made[3]]), map.project([made[2], made[1]])];
      if (Math.abs(a.x - b.x) > 4 && Math.abs(a.y - b.y) > 4) marked.push(made);
      changed();
    };
    const heard = { mousedown: down, mousemove: move, mouseup: up, touchstart: down, touchmove: move, touchend: up };
    for (const [name, act] of Object.entries(heard)) map.on(name, act);
  }

  function goTo(ring) {
    const bounds = ring.reduce((all, point) => all.extend(point), new maplibregl.LngLatBounds(ring[0], ring[0]));
    crisp.panes[1].map.fitBounds(bounds, { padding: 60, animate: false, maxZoom: about.zoom });
  }

  function show(number) {
    place = about.places[number] ?? null;
    draw();
    if (place) goTo(place.ring);
  }

  function showFromAddress() {
    const found = /^#place=(\d+)$/.exec(location.hash);
    if (found) show(Number(found[1]));
  }

  function start() {
    for (const pane of crisp.panes) listen(pane.map);
    find("mark")?.addEventListener("click", () => mark(!marking));
    find("forget").addEventListener("click", () => { marked.length = 0; changed(); });
    find("places-section").hidden = about.places.length === 0;
    find("places").append(...about.places.map((each, number) => crisp.panel.make("li", {}, crisp.panel.make(
      "a", { href: `#place=${number}`, textContent: each.label },
    ))));
    addEventListener("hashchange", showFromAddress);
    showFromAddress();
  }

  crisp.marks = { start, toggle: () => mark(!marking), get active() { return marking; }, marked };
})();
