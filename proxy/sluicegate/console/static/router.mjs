/** Which page is shown: paths below /console, filters as query parameters. */
import { computed, signal } from "./vendor/signals.mjs";

const at = signal(location.pathname + location.search);
export const route = computed(() => {
  const [page = "", item = ""] = at.value.split("?")[0].replace(/^\/console\/?/, "").split("/").map(decodeURIComponent);
  return { page: page || "overview", item };
});
export const query = computed(() => new URLSearchParams(at.value.split("?")[1] ?? ""));

/** @param {string} path */
export function go(path, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", path);
  at.value = path;
}

window.addEventListener("popstate", () => { at.value = location.pathname + location.search; });
document.addEventListener("click", (event) => {
  const link = /** @type {HTMLElement} */ (event.target).closest?.("a[href^='/console']");
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(/** @type {string} */ (link.getAttribute("href")));
});
