// This script is the search on the first page. It needs no server, because it searches sluiceCatalogue, which index.js
// declares. It shows untrusted strings as text and never as markup.
"use strict";

const layout = 1;
const perStep = 50;
const form = document.querySelector("[data-search]");
const box = document.getElementById("q");
const chips = [...form.querySelectorAll("[data-filter]")];
const list = document.querySelector("[data-results]");
const found = document.querySelector("[data-found]");
const more = document.querySelector("[data-more]");

// The search index refers to categories, risks and marks by their positions in these arrays.
const categories = ["unknown", "read", "write", "execute", "destructive", "financial"];
const risks = ["unknown", "low", "medium", "high", "critical"];
const marks = ["stopped", "waits", "unsure", "decided", "gone"];
const labels = new Map(chips.map((chip) => [chip.dataset.filter + " " + chip.dataset.value, chip.textContent]));

const tools = sluiceCatalogue.tools.map(([server, name, bits, summary, stem]) => {
  const [serverName, serverStem] = sluiceCatalogue.servers[server];
  return {
    name, summary, server: serverName,
    category: categories[bits & 7], risk: risks[(bits >> 3) & 7], marks: marks.filter((_, i) => (bits >> (6 + i)) & 1),
    href: "tool/" + serverStem + "/" + (stem ?? name) + ".html",
    lowName: name.toLowerCase(), low: (name + "\n" + serverName + "\n" + summary).toLowerCase(),
  };
});

const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

// rank returns how well a tool matches the words. A lower number is a better match, and -1 is no match. A match in the
// name is better than a match in the server's name or in the summary.
const rank = (tool, words) => {
  let sum = 0;
  for (const word of words) {
    const at = tool.lowName.indexOf(word);
    if (tool.lowName === word) {
      continue;
    } else if (at === 0) {
      sum += 1;
    } else if (at > 0) {
      sum += /[a-z0-9]/.test(tool.lowName[at - 1]) ? 3 : 2;
    } else if (tool.low.includes(word)) {
      sum += 8;
    } else {
      return -1;
    }
  }
  return sum;
};

const chosen = (filter) => chips.filter((chip) => chip.dataset.filter === filter && chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.value);

const search = () => {
  const words = wordsOf(box.value);
  const [category, risk, mark] = ["category", "risk", "mark"].map(chosen);
  const hits = [];
  for (const tool of tools) {
    if (category.length && !category.includes(tool.category) || risk.length && !risk.includes(tool.risk) ||
      mark.length && !mark.some((m) => tool.marks.includes(m))) {
      continue;
    }
    const at = rank(tool, words);
    if (at >= 0) {
      hits.push({tool, at});
    }
  }
  return hits.sort((a, b) => a.at - b.at).map((hit) => hit.tool); // sort keeps the order of tools with equal ranks
};

const element = (tag, className, ...children) => {
  const out = document.createElement(tag);
  out.className = className;
  out.append(...children);
  return out;
};

// marked returns an element with the text, in which the searched words are highlighted.
const marked = (text, words) => {
  const out = document.createElement("bdi");
  const low = text.toLowerCase();
  if (low.length !== text.length) { // the offsets in text and low differ
    out.append(text);
    return out;
  }
  let from = 0;
  while (from < text.length) {
    let at = -1, length = 0;
    for (const word of words) {
      const here = low.indexOf(word, from);
      if (here >= 0 && (at < 0 || here < at || here === at && word.length > length)) {
        [at, length] = [here, word.length];
      }
    }
    if (at < 0) {
      break;
    }
    out.append(text.slice(from, at), element("mark", "", text.slice(at, at + length)));
    from = at + length;
  }
  out.append(text.slice(from));
  return out;
};

const steps = (reached) => {
  const out = element("span", "steps");
  out.setAttribute("aria-hidden", "true");
  for (let i = 0; i < 4; i++) {
    out.append(element("i", i < reached ? "on" : ""));
  }
  return out;
};

const short = (text) => {
  const chars = [...text];
  return chars.length > 64 ? chars.slice(0, 64).join("") + "…" : text;
};

const badge = (filter, slug, ...before) => {
  const label = labels.get(filter + " " + slug) ?? slug;
  return element("span", (filter === "mark" ? "" : "badge ") + filter + " " + slug, ...before, label);
};

const row = (tool, words) => {
  const badges = element("span", "row-badges", ...tool.marks.map((m) => badge("mark", m)),
    badge("category", tool.category), badge("risk", tool.risk, steps(risks.indexOf(tool.risk) || 4)));
  const link = element("a", "row", element("span", "row-name", marked(short(tool.name), words)),
    element("span", "row-server", marked(tool.server, words)), badges, element("span", "row-summary", marked(tool.summary, words)));
  link.href = tool.href;
  link.lastElementChild.dir = "auto";
  return element("li", "", link);
};

let hits = [], shown = 0;

const showMore = () => {
  const words = wordsOf(box.value);
  const next = hits.slice(shown, shown + perStep);
  list.append(...next.map((tool) => row(tool, words)));
  shown += next.length;
  more.hidden = shown === hits.length;
  more.textContent = "Show " + Math.min(perStep, hits.length - shown) + " more of " + (hits.length - shown).toLocaleString("en");
};

const say = () => {
  const all = tools.length.toLocaleString("en"), some = hits.length.toLocaleString("en");
  if (tools.length === 0) {
    return "The catalogue has no tools.";
  }
  return hits.length === tools.length ? "All " + all + (tools.length === 1 ? " tool" : " tools") : hits.length === 0 ? "No tool fits. Use fewer words, or take filters away." : some + " of " + all + " tools";
};

// remember stores the search in the address of the page, so that the search can be bookmarked, sent to others, and found
// again with the browser's back button.
const remember = () => {
  const state = new URLSearchParams();
  if (box.value.trim()) {
    state.set("q", box.value.trim());
  }
  for (const filter of ["category", "risk", "mark"]) {
    if (chosen(filter).length) {
      state.set(filter, chosen(filter).join(","));
    }
  }
  try {
    history.replaceState(null, "", state.size ? "#" + state : location.pathname + location.search);
  } catch {
    // Some browsers do not allow pages on a disk to change their address.
  }
};

const recall = () => {
  if (!location.hash.includes("=")) {
    return false;
  }
  const state = new URLSearchParams(location.hash.slice(1));
  box.value = state.get("q") ?? "";
  for (const chip of chips) {
    const values = (state.get(chip.dataset.filter) ?? "").split(",");
    chip.setAttribute("aria-pressed", String(values.includes(chip.dataset.value)));
  }
  return state.has("q");
};

const refresh = () => {
  hits = search();
  shown = 0;
  list.replaceChildren();
  showMore();
  found.textContent = say();
};

const changed = () => {
  refresh();
  remember();
};

// move moves the focus up or down between the search box and the links to tools. Because the link itself has the focus,
// Enter opens it.
const move = (event, by) => {
  const links = [...list.querySelectorAll("a")];
  const at = links.indexOf(document.activeElement);
  if (links.length === 0 || at < 0 && by < 0) {
    return;
  }
  event.preventDefault();
  if (at + by < 0) {
    box.focus();
    return;
  }
  if (at + by === links.length && !more.hidden) {
    showMore();
  }
  (list.querySelectorAll("a")[at + by] ?? links[at]).focus();
};

const inSearch = () => document.activeElement === box || list.contains(document.activeElement);

document.addEventListener("keydown", (event) => {
  if (!inSearch()) {
    return;
  }
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    move(event, event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "Escape") {
    if (document.activeElement === box) {
      box.value = "";
      changed();
    }
    box.focus();
  }
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  list.querySelector("a")?.click();
});
box.addEventListener("input", changed);
more.addEventListener("click", () => {
  const next = shown;
  showMore();
  list.querySelectorAll("a")[next]?.focus();
});
for (const chip of chips) {
  chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
    changed();
  });
}
addEventListener("hashchange", () => {
  recall();
  refresh();
});

if (sluiceCatalogue.version === layout) {
  form.hidden = false;
  const asked = recall();
  refresh();
  if (asked) {
    box.focus();
  }
} else {
  found.textContent = "The search does not fit this catalogue: load the page anew.";
}
