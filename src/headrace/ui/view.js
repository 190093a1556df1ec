// Theme, keyboard shortcuts, and units of chart axes.
(() => {
  const KEY = "headrace-theme";
  const THEMES = ["auto", "light", "dark"];
  const G_MS_MAX = 1500; // between `g` and the letter of a page
  const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

  window.headraceBytes = (value) => {
    let index = 0;
    while (Math.abs(value) >= 1024 && index < SIZES.length - 1) {
      value /= 1024;
      index += 1;
    }
    return `${Number(value.toFixed(1))} ${SIZES[index]}`;
  };

  const saved = () => {
    try {
      const theme = localStorage.getItem(KEY);
      return THEMES.includes(theme) ? theme : "auto";
    } catch {
      return "auto";
    }
  };

  const apply = (theme) => {
    setDark(theme === "auto" ? null : theme === "dark");
    const button = document.getElementById("hr-theme");
    if (button) button.textContent = `Theme: ${theme}`;
  };

  const nextTheme = () => {
    const theme = THEMES[(THEMES.indexOf(saved()) + 1) % THEMES.length];
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // Without storage the choice lasts as long as the page.
    }
    apply(theme);
  };

  const help = () => {
    let dialog = document.getElementById("hr-shortcuts");
    if (!dialog) {
      dialog = document.createElement("dialog");
      dialog.id = "hr-shortcuts";
      dialog.className = "hr-dialog";
      dialog.setAttribute("aria-label", "Shortcuts");
      const rows = [...document.querySelectorAll("[data-key]")].map((link) => [`g ${link.dataset.key}`, link.textContent]);
      rows.push(["/", "Focus the search field"], ["d", "Theme: auto, light, dark"], ["?", "Show shortcuts"], ["Esc", "Close"]);
      const title = document.createElement("h2");
      title.textContent = "Shortcuts";
      const table = document.createElement("table");
      for (const [keys, what] of rows) {
        const row = table.insertRow();
        const kbd = document.createElement("kbd");
        kbd.textContent = keys;
        row.insertCell().append(kbd);
        row.insertCell().textContent = what;
      }
      const close = document.createElement("button");
      close.type = "button";
      close.className = "hr-button";
      close.textContent = "Close";
      close.onclick = () => dialog.close();
      dialog.append(title, table, close);
      document.body.append(dialog);
    }
    dialog.showModal();
  };

  let pressedG = 0;
  const isTyping = (target) => target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector(".q-dialog__inner, dialog[open]")) return;
    if (event.key === "g") {
      pressedG = Date.now();
      return;
    }
    if (Date.now() - pressedG < G_MS_MAX) {
      pressedG = 0;
      const link = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
      return;
    }
    if (event.key === "/") {
      const field = document.querySelector("[data-search], .hr-search input");
      if (field) {
        event.preventDefault();
        field.focus();
      }
    } else if (event.key === "d") {
      nextTheme();
    } else if (event.key === "?") {
      help();
    }
  });

  document.addEventListener("click", (event) => {
    if (event.target.id === "hr-theme") nextTheme();
    if (event.target.id === "hr-help") help();
  });

  document.addEventListener("DOMContentLoaded", () => setTimeout(() => apply(saved()), 0));
})();
