// Where layers, counts and pixels come from: a server, or the saved page itself. Both give the same answers.
"use strict";
window.crisp = {};
(() => {
  const about = JSON.parse(document.getElementById("about").textContent);

  class ServerAnswers {
    constructor() {
      this.base = new URL(about.base || ".", location.href).href;
    }

    // Tiles have 512 px; said to be smaller, they are shrunk a little rather than enlarged, so outlines stay crisp.
    async source(layer, off) {
      return {
        type: "raster", tiles: [this.tiles(layer, off)], tileSize: 384, bounds: about.bounds, maxzoom: about.deepest,
      };
    }

    async recolour(source, layer, off) {
      source.setTiles([this.tiles(layer, off)]);
    }

    tiles(layer, off) {
      const hidden = off.size ? `&off=${[...off].join(".")}` : "";
      return `${this.base}tiles/${layer}/{z}/{x}/{y}?v=${about.versions[layer]}${hidden}`;
    }

    async ask(path) {
      const response = await fetch(this.base + path);
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
      return answer;
    }

    legend() { return this.ask("legend.json"); }

    point(at) { return this.ask(`point.json?lon=${at.lng}&lat=${at.lat}`); }

    polygons(bounds, zoom) {
      const [west, south, east, north] = bounds.toArray().flat();
      return this.ask(`polygons.json?west=${west}&south=${south}&east=${east}&north=${north}&zoom=${zoom}`);
    }

    exportAddress(windows) {
      const words = windows.map((w) => `window=${w.map((v) => v.toFixed(9)).join(",")}`);
      return `${this.base}windows.gpkg?${words.join("&")}`;
    }
  }

  class SavedAnswers {
    constructor() {
      this.saved = about.saved;
      this.decoded = {};
    }

    // class numbers of a layer: { width, height, ids }
    numbers(layer) {
      this.decoded[layer] ??= this.decode(this.saved.layers[layer].ids);
      return this.decoded[layer];
    }

    async decode(address) {
      const picture = new Image();
      picture.src = address;
      await picture.decode();
      const canvas = new OffscreenCanvas(picture.width, picture.height);
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(picture, 0, 0);
      const pixels = context.getImageData(0, 0, picture.width, picture.height).data;
      const ids = new Uint8Array(pixels.length / 4);
      for (let i = 0; i < ids.length; i++) ids[i] = pixels[4 * i];
      return { width: picture.width, height: picture.height, ids };
    }

    async compared(other, off) {
      const [one, two] = await Promise.all([this.numbers("a"), this.numbers(other)]);
      const ids = one.ids.map((k, i) => (k !== two.ids[i] && k !== 255 && two.ids[i] !== 255 && !off.has(k) ? 0 : 255));
      return { ...one, ids };
    }

    async picture(layer, off) {
      if (layer === "image") return this.saved.layers.image.picture;
      let found; let colours;
      if (layer === "errors" || layer === "difference") {
        found = await this.compared(layer === "errors" ? "truth" : "b", off);
        colours = [[216, 27, 185]];  // as painting.py's OFF
        off = new Set();
      } else {
        found = await this.numbers(layer);
        colours = layer === "confidence" ? crisp.ramp() : about.classes.map((c) => parseColour(c.colour));
        if (layer === "confidence") off = new Set();
      }
      return this.paint(found, colours, off);
    }

    async paint({ width, height, ids }, colours, off) {
      const canvas = new OffscreenCanvas(width, height);
      const context = canvas.getContext("2d");
      const picture = context.createImageData(width, height);
      for (let i = 0; i < ids.length; i++) {
        const colour = off.has(ids[i]) ? undefined : colours[ids[i]];
        if (colour) picture.data.set([colour[0], colour[1], colour[2], 255], 4 * i);
      }
      context.putImageData(picture, 0, 0);
      return URL.createObjectURL(await canvas.convertToBlob());
    }

    corners(layer) {
      return this.saved.layers[layer === "errors" || layer === "difference" ? "a" : layer].corners;
    }

    async source(layer, off) {
      return { type: "image", url: await this.picture(layer, off), coordinates: this.corners(layer) };
    }

    async recolour(source, layer, off) {
      source.updateImage({ url: await this.picture(layer, off), coordinates: this.corners(layer) });
    }

    async legend() { return this.saved.legend; }

    async point(at) {
      const [column, row] = this.place(at, this.saved.corners, about.size);
      if (column < 0 || row < 0 || column >= about.size[0] || row >= about.size[1]) return { inside: false };
      const answer = { inside: true, row, column, classes: {} };
      for (const layer of Object.keys(this.saved.layers)) {
        if (layer === "image") continue;
        const found = await this.numbers(layer);
        const [x, y] = this.place(at, this.corners(layer), [found.width, found.height]);
        const number = found.ids[y * found.width + x] ?? 255;
        if (layer === "confidence") answer.confidence = number === 255 ? null : number / 254;
        else answer.classes[layer] = about.classes[number]?.name ?? "no data";
      }
      return answer;
    }

    // (column, row) of a point in a picture that lies at four corners
    place(at, corners, [width, height]) {
      const flat = (c) => { const m = maplibregl.MercatorCoordinate.fromLngLat(c); return [m.x, m.y]; };
      const [o, r, , d] = corners.map(flat);
      const [px, py] = flat(at).map((v, i) => v - o[i]);
      const [ax, ay, bx, by] = [r[0] - o[0], r[1] - o[1], d[0] - o[0], d[1] - o[1]];
      const area = ax * by - ay * bx;
      return [Math.floor(((px * by - py * bx) / area) * width), Math.floor(((ax * py - ay * px) / area) * height)];
    }

    async polygons() { return this.saved.polygons; }

    exportAddress() { return null; }
  }

  const parseColour = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));

  // 255 colours of confidences
  crisp.ramp = () => Array.from({ length: 255 }, (_, i) => {
    const at = (i / 254) * (about.ramp.length - 1);
    const low = Math.min(Math.floor(at), about.ramp.length - 2);
    return about.ramp[low].map((v, c) => Math.round(v + (about.ramp[low + 1][c] - v) * (at - low)));
  });
  crisp.about = about;
  crisp.answers = about.saved ? new SavedAnswers() : new ServerAnswers();
})();
