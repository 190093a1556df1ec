"""Accessibility checks of a page: names, contrast, heading levels, tab order."""

from __future__ import annotations

from playwright.sync_api import Page

CONTRAST_MIN = 4.5
"""WCAG 2, level AA, for text of any size."""


def flaws(page: Page) -> list[str]:
    """Return elements without a name, low contrast, skipped heading levels and explicit tab orders."""
    messages: list[str] = page.evaluate(_SCRIPT, CONTRAST_MIN)
    return messages


_SCRIPT = """async contrastMin => {
  const still = Promise.allSettled(document.getAnimations().map(each => each.finished));
  await Promise.race([still, new Promise(done => setTimeout(done, 2000))]);  // wait for colour transitions
  const flaws = [];
  const seen = e => e.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const named = e => {
    const labels = [...(e.labels || [])].map(l => l.innerText).join(" ");
    return (e.getAttribute("aria-label") || labels || e.innerText || e.title || "").trim();
  };
  const label = e => `<${e.tagName.toLowerCase()} class="${e.className}"> ${(e.innerText || "").trim().slice(0, 40)}`;
  for (const e of document.querySelectorAll("a, button, input, select, textarea, [role=img], [role=dialog]"))
    if (seen(e) && !named(e)) flaws.push(`no name: ${label(e)}`);
  for (const e of document.querySelectorAll("table"))
    if (seen(e) && !e.closest("[role=group][aria-label]")) flaws.push(`no name: ${label(e)}`);
  for (const e of document.querySelectorAll("[tabindex]"))
    if (e.tabIndex > 0) flaws.push(`explicit tab order: ${label(e)}`);
  let level = 0;
  for (const e of document.querySelectorAll("h1, h2, h3, h4")) {
    const now = Number(e.tagName[1]);
    if (now > level + 1) flaws.push(`skipped heading level: ${label(e)}`);
    level = now;
  }
  if (!document.documentElement.lang) flaws.push("no language on the page");
  if (document.querySelectorAll("main h1").length !== 1) flaws.push("not exactly one h1");

  const rgba = text => {
    const numbers = text.match(/[\\d.]+/g).map(Number);
    return text.startsWith("color(srgb") ? [...numbers.slice(0, 3).map(n => n * 255), numbers[3] ?? 1]
                                         : [...numbers.slice(0, 3), numbers[3] ?? 1];
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const ground = e => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = colour => {
    const [r, g, b] = colour.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !seen(e) || e.closest("svg, [disabled], .q-notification")) continue;
    const below = ground(e);
    const lights = [light(over(rgba(getComputedStyle(e).color), below)), light(below)].sort((a, b) => b - a);
    const contrast = (lights[0] + 0.05) / (lights[1] + 0.05);
    if (contrast < contrastMin) flaws.push(`low contrast, ${contrast.toFixed(2)}: ${label(e)}`);
  }
  return [...new Set(flaws)].slice(0, 20);
}"""
