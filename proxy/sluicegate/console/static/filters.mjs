/** Filters of a page that searches the log: they stand in the address, so that a view can be a bookmark. */
import { useState } from "./vendor/hooks.mjs";
import { html } from "./ui.mjs";
import { go, query } from "./router.mjs";

/** The filters of the address alone, without those in `left`. @param {Record<string, string>} titles @param {string[]} left */
export function filtersOf(titles, left = []) {
  const found = new URLSearchParams();
  for (const name of Object.keys(titles)) if (query.value.get(name) && !left.includes(name)) found.set(name, /** @type {string} */ (query.value.get(name)));
  return found.toString();
}

/**
 * One field for each of `titles`. With a `note`, `until` is not typed: the page links to it, and the note says so.
 * @param {{titles: Record<string, string>, hints: Record<string, string>, choices: Record<string, string[]>, focus: string,
 *   label: string, pathOf: (filter: string) => string, note?: (until: string, rest: string) => any}} props
 */
export function Filters({ titles, hints, choices, focus, label, pathOf, note }) {
  const [isOpen] = useState(innerWidth > 640 || filtersOf(titles) !== "");
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    const next = new URLSearchParams();
    for (const [name, value] of new FormData(event.currentTarget)) if (String(value).trim()) next.set(name, String(value).trim());
    if (next.toString() !== filtersOf(titles)) go(pathOf(next.toString()));
  };
  return html`<details class="filter-box" open=${isOpen}><summary>Filters</summary><form class="filters" onSubmit=${submit} onChange=${submit} aria-label=${label}>${Object.entries(titles).map(([name, title]) => {
    const value = query.value.get(name) ?? "";
    if (name === "until" && note) return value && html`<p class="note">${note(value, filtersOf(titles, ["until"]))}<input type="hidden" name="until" value=${value} /></p>`;
    return html`<label>${title}${choices[name] ? html`<select name=${name}><option value="">any</option>${choices[name].map((word) => html`<option value=${word} selected=${word === value}>${word.replaceAll("_", " ")}</option>`)}</select>`
      : html`<input name=${name} value=${value} placeholder=${hints[name]} data-filter=${name === focus ? "" : undefined} spellcheck="false" autocomplete="off" />`}</label>`;
  })}<button class="hidden" tabindex="-1">Filter</button></form></details>`;
}
