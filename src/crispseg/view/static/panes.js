// Two maps that move together: one above the other with a divider between them, side by side, or one alone.
"use strict";
(() => {
  const { about, answers } = crisp;
  const LAYOUTS = ["swipe", "side", "single"];

  class Pane {
    constructor(name) {
      this.name = name;
      this.theme = "";
      this.map = new maplibregl.Map({
        container: name,
        style: { version: 8, sources: {}, layers: [] },
        bounds: about.bounds,
        fitBoundsOptions: { padding: 24 },
        attributionControl: false,
        dragRotate: false,
        touchPitch: false,
        pitchWithRotate: false,
        maxPitch: 0,
        fadeDuration: 0,
        renderWorldCopies: false,
        maxZoom: Math.min(24, about.zoom + 5),
      });
      this.map.touchZoomRotate.disableRotation();
      this.map.keyboard.disableRotation();
      this.map.getCanvas().setAttribute("aria-label", `${name} map`);
      this.loaded = new Promise((resolve) => { this.map.on("load", resolve); });
      this.map.on("error", (event) => crisp.explain(event.error));
    }

    async start() {
      await this.loaded;
      this.map.setMinZoom(Math.max(0, this.map.getZoom() - 2));
      if (about.image) {
        this.map.addSource("image", await answers.source("image", new Set()));
        this.map.addLayer({ id: "image", type: "raster", source: "image", paint: raster("linear", 1) });
      }
      const empty = { type: "FeatureCollection", features: [] };
      for (const name of ["polygons", "marks"]) this.map.addSource(name, { type: "geojson", data: empty });
      const lines = [
        ["polygons-halo", "polygons", "#ffffff", wider(1.2, 3)], ["polygons", "polygons", "#101418", wider(0.5, 1.3)],
        ["marks-halo", "marks", "#101418", 5], ["marks", "marks", "#ffe14d", 2.5],
      ];
      for (const [id, source, colour, width] of lines) {
        this.map.addLayer({ id, type: "line", source, paint: { "line-color": colour, "line-width": width } });
      }
    }

    async show(theme) {
      this.theme = theme;
      const source = theme ? await answers.source(theme, crisp.off) : null;
      if (this.theme !== theme) return; // another was chosen meanwhile
      if (this.map.getLayer("theme")) { this.map.removeLayer("theme"); this.map.removeSource("theme"); }
      if (!theme) return;
      this.map.addSource("theme", source);
      const paint = raster("nearest", crisp.opacity);
      this.map.addLayer({ id: "theme", type: "raster", source: "theme", paint }, "polygons-halo");
    }

    async recolour() {
      const source = this.map.getSource("theme");
      if (source && this.theme !== "confidence") await answers.recolour(source, this.theme, crisp.off);
    }

    fade() {
      if (this.map.getLayer("theme")) this.map.setPaintProperty("theme", "raster-opacity", crisp.opacity);
    }

    draw(name, features) { this.map.getSource(name)?.setData(features); }
  }

  // thin from afar, or lines would cover the map
  const wider = (from, to) => ["interpolate", ["linear"], ["zoom"], about.zoom - 3, from, about.zoom, to];
  const raster = (resampling, opacity) => ({
    "raster-resampling": resampling, "raster-opacity": opacity, "raster-fade-duration": 0,
  });

  function link(one, other) {
    let following = false;
    for (const [from, to] of [[one, other], [other, one]]) {
      from.on("move", () => {
        if (following) return;
        following = true;
        to.jumpTo({ center: from.getCenter(), zoom: from.getZoom(), bearing: from.getBearing() });
        following = false;
      });
    }
  }

  const stage = document.getElementById("stage");
  const divider = document.getElementById("divider");

  function cut(percent) {
    const value = Math.max(0, Math.min(100, percent));
    stage.style.setProperty("--cut", `${value}%`);
    divider.setAttribute("aria-valuenow", String(Math.round(value)));
    crisp.cutAt = value;
  }

  function layout(name) {
    stage.dataset.layout = name;
    for (const each of LAYOUTS) document.getElementById(each).setAttribute("aria-pressed", String(each === name));
    document.getElementById("left-choice").hidden = name === "single";
    for (const pane of crisp.panes ?? []) pane.map.resize();
    // what was in the middle stays there
    crisp.panes?.[1].map.fire("move");
  }

  divider.addEventListener("pointerdown", (event) => {
    divider.setPointerCapture(event.pointerId);
    event.preventDefault();
    divider.focus();
  });
  divider.addEventListener("pointermove", (event) => {
    if (!divider.hasPointerCapture(event.pointerId)) return;
    const box = stage.getBoundingClientRect();
    cut(((event.clientX - box.left) / box.width) * 100);
  });
  divider.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -2, ArrowRight: 2, PageDown: -10, PageUp: 10, Home: -100, End: 100 };
    if (!(event.key in steps)) return;
    cut(crisp.cutAt + steps[event.key]);
    event.preventDefault();
    event.stopPropagation();
  });

  Object.assign(crisp, { Pane, link, cut, layout, LAYOUTS });
})();
