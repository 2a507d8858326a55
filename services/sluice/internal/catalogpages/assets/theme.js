// This script runs before the page is drawn. It applies the stored choice of light or dark colours, so that the page does
// not flash.
"use strict";
try {
  const chosen = localStorage.getItem("sluice-theme");
  if (chosen === "light" || chosen === "dark") {
    document.documentElement.dataset.theme = chosen;
  }
} catch {
  // Some browsers store nothing for pages on a disk. In that case, the system's colours apply.
}
