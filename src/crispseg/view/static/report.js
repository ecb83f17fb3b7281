// On a served report: links from places to the map.
"use strict";
(async () => {
  const response = await fetch("places.json");
  if (!response.ok) return;
  for (const { place, scene, mark } of (await response.json()).places) {
    for (const link of document.querySelectorAll(`a[data-place="${place}"]`)) {
      link.href = `scenes/${scene}/#place=${mark}`;
      link.hidden = false;
    }
  }
  for (const hint of document.querySelectorAll(".needs-server")) hint.hidden = true;
})();
