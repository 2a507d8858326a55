// This script runs on every page. It switches between light and dark colours, makes the key "/" open the search, adds
// buttons that copy rules, and opens answers when they are printed or a link leads to them.
"use strict";

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

const themeSwitch = document.querySelector("[data-theme-switch]");
const nameTheme = () => {
  themeSwitch.querySelector("[data-theme-name]").textContent = isDark() ? "Light" : "Dark";
  themeSwitch.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
};
themeSwitch.hidden = false;
nameTheme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
themeSwitch.addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  nameTheme();
  try {
    localStorage.setItem("sluice-theme", theme);
  } catch {
    // Without storage, the chosen colours apply only to this page.
  }
});

const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) {
    return;
  }
  event.preventDefault();
  const box = document.getElementById("q");
  if (box) {
    box.focus();
    box.select();
  } else {
    location.href = document.querySelector(".brand").href + "#q=";
  }
});

for (const rule of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) {
    break; // browsers offer the clipboard only to pages from a disk or with TLS
  }
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(rule.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  rule.append(button);
}

const openTarget = () => {
  const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
  }
};
openTarget();
addEventListener("hashchange", openTarget);

let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details.question:not([open]), details.rest:not([open])")];
  for (const details of closed) {
    details.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const details of closed) {
    details.open = false;
  }
});
