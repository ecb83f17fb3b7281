"""Debian's chromium, driven by playwright; tests that need it are skipped where either is missing."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

_QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)

# The smallest contrast of any text on the page with what lies behind it, and the text that has it.
CONTRAST = """
() => {
  const parse = (c) => {
    const numbers = (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
    return c.startsWith('color(') ? [...numbers.slice(0, 3).map((v) => 255 * v), ...numbers.slice(3)] : numbers;
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    let layers = [];
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      layers.push([...colour.slice(0, 3), colour[3] ?? 1]);
      if ((colour[3] ?? 1) === 1) break;
    }
    return layers.reverse().reduce((under, [r, g, b, a]) =>
      [r, g, b].map((v, i) => v * a + under[i] * (1 - a)), [255, 255, 255]);
  };
  let worst = [99, ''];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || ['SCRIPT', 'STYLE'].includes(element.tagName) || !element.checkVisibility()) continue;
    if (element.closest('svg') || element.disabled) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, text.slice(0, 60)];
  }
  return worst;
}
"""


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium here")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_QUIET.split())
        yield browser
        browser.close()


def open_page(browser: Any, address: str, width: int = 900, height: int = 560, theme: str = "light") -> Any:
    """A page that keeps its errors and the addresses it asked for."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    page.errors, page.asked = [], []
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("dialog", lambda dialog: page.errors.append(f"dialog: {dialog.message}"))
    page.on("response", lambda answer: page.asked.append((answer.status, answer.url)))
    page.goto(address)
    return page


def wait_until(page: Any, condition: str, seconds: float = 30) -> None:
    """The page's policy forbids playwright's own way, which evaluates text inside the page."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"never came: {condition}; {page.errors}"
        page.wait_for_timeout(30)


def settle(page: Any) -> None:
    """Until the map stands still with all its tiles and counts."""
    wait_until(page, "document.documentElement.dataset.ready === 'yes'")
    wait_until(page, "document.documentElement.dataset.counted === 'yes'")
    wait_until(page, "crisp.panes.every((pane) => pane.map.loaded() && pane.map.areTilesLoaded())")
