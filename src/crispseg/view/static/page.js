// For every page: dark or light, and pictures with a divider.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches);
  window.switchTheme = () => { root.dataset.theme = dark() ? "light" : "dark"; };
  document.getElementById("theme")?.addEventListener("click", window.switchTheme);
  for (const box of document.querySelectorAll(".compare")) {
    const slider = box.querySelector("input");
    slider.addEventListener("input", () => box.style.setProperty("--cut", `${slider.value}%`));
  }
})();
