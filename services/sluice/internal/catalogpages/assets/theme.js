// Sets the scheme that was chosen before the page is drawn, so that it does not flash.
"use strict";
try {
  const chosen = localStorage.getItem("sluice-theme");
  if (chosen === "light" || chosen === "dark") {
    document.documentElement.dataset.theme = chosen;
  }
} catch {
  // Some browsers keep nothing for pages on a disk: the system's scheme holds.
}
