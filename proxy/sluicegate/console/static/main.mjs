/** The frame of all pages: navigation, login, keys, what is announced, and how current everything is. */
import { render } from "./vendor/preact.mjs";
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.mjs";
import { answeredAt, isOffline, isStarted, logIn, logOut, look, session, start, startProblem } from "./net.mjs";
import { liveState, onChange, opened } from "./live.mjs";
import { Peer, StepUp, clock, html, span, spoken, useRequest } from "./ui.mjs";
import { go, route } from "./router.mjs";
import { Approvals, waiting, yours } from "./approvals.mjs";
import { Overview } from "./overview.mjs";
import { Activity } from "./activity.mjs";
import { Servers } from "./servers.mjs";
import { Logins } from "./logins.mjs";
import { Catalog } from "./catalog.mjs";
import { Policy } from "./policy.mjs";
import { Audit } from "./audit.mjs";
import { Health } from "./health.mjs";

const PAGES = {
  overview: ["Overview", Overview, "o"], approvals: ["Approvals", Approvals, "a"], activity: ["Activity", Activity, "y"],
  servers: ["Servers", Servers, "s"], logins: ["Logins", Logins, "l"],
  catalog: ["Catalog", Catalog, "c"], policy: ["Policy", Policy, "p"],
  audit: ["Audit", Audit, "u"], health: ["Health", Health, "h"],
};
const ON_A_PHONE = 3; // as many fit below; the others are behind "More"
const ICONS = {
  overview: "M3 12h4l3-8 4 16 3-8h4", approvals: "M4 5h16v14H4zM8 12l3 3 5-6", activity: "M4 20V10M10 20V4M16 20v-7M22 20H2",
  logins: "M9 11V7a3 3 0 0 1 6 0v4M5 11h14v10H5zM12 15v2", servers: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.01M8 17h.01",
  catalog: "M4 4h6v6H4zM14 4h6v6h-6zM4 14h6v6H4zM14 14h6v6h-6z", policy: "M12 3l8 3v6c0 5-3.5 8-8 9-4.5-1-8-4-8-9V6zM9 12l2 2 4-4", health: "M12 20s-8-5-8-11a4.5 4.5 0 0 1 8-2.8A4.5 4.5 0 0 1 20 9c0 6-8 11-8 11z",
  audit: "M6 3h9l4 4v14H6zM9 12h6M9 16h6", more: "M5 12h.01M12 12h.01M19 12h.01",
};
const Icon = ({ name }) => html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d=${ICONS[name]} /></svg>`;

function App() {
  if (!isStarted.value) return html`<div class="boot" aria-busy="true" />`;
  if (session.value === null) return html`<${LogIn} />`;
  const found = PAGES[route.value.page], Page = found?.[1] ?? Missing;
  return html`<a class="skip" href="#main">Skip to content</a>
    <aside class="side"><a class="brand" href="/console"><${Mark} />Sluice</a>
      <nav aria-label="Pages">${Object.keys(PAGES).map((name, index) => html`<${PageLink} name=${name} isMore=${index >= ON_A_PHONE} />`)}
        <details class="more" onClick=${(/** @type {any} */ event) => { if (event.target.closest("a")) event.currentTarget.open = false; }}>
          <summary><${Icon} name="more" /><span>More</span></summary><div class="menu">${Object.keys(PAGES).slice(ON_A_PHONE).map((name) => html`<${PageLink} name=${name} />`)}</div></details></nav>
      <div class="foot"><${Status} /><${Who} /></div></aside>
    <main id="main" tabindex="-1"><${Ending} /><${Page} /></main><${StepUp} /><${Help} /><${Counted} />
    <div class="hidden" role="status" aria-live="polite">${spoken.value}</div>`;
}

/** What waits is counted on every page; without the right it is asked for once. */
function Counted() {
  useEffect(() => {
    void opened.then(() => waiting.load());
    return onChange(() => { if (waiting.failure.value?.status !== 403) void waiting.load(); }, ["approval"]);
  }, []);
  return null;
}

function PageLink({ name, isMore = false }) {
  return html`<a class=${isMore ? "wide" : undefined} href=${name === "overview" ? "/console" : `/console/${name}`} aria-current=${route.value.page === name ? "page" : undefined}>
    <${Icon} name=${name} /><span>${PAGES[name][0]}</span>${name === "approvals" && yours().length > 0 && html`<b class="count" aria-label=${`${yours().length} for you`}>${yours().length}</b>`}</a>`;
}

const Mark = () => html`<svg class="mark" viewBox="0 0 24 24" aria-hidden="true"><path d="M4 4v16M20 4v16M4 8h16M8 8v7M12 8v10M16 8v7" /></svg>`;
const Missing = () => html`<div class="empty wide"><h1>There is no such page</h1><p><a href="/console">To the overview</a></p></div>`;

function Status() {
  const isLive = liveState.value === "live" && !isOffline.value;
  const word = isLive ? "live" : isOffline.value ? "stale" : liveState.value === "reconnecting" ? "reconnecting" : "polling";
  return html`<p class=${`status ${isLive ? "good" : isOffline.value ? "bad" : "wait"}`} role="status"><span class="dot" aria-hidden="true" />${
    word}${isOffline.value && answeredAt.value > 0 && ` since ${clock(answeredAt.value)}`}</p>`;
}

function Who() {
  return html`<details class="who"><summary><${Peer} text=${session.value?.principal} /></summary><div class="menu">
    <button onClick=${() => logOut(false)}>Log out</button><button onClick=${() => logOut(true)}>Log out everywhere</button></div></details>`;
}

/** A minute before the session ends for want of a person, that person is asked. */
function Ending() {
  const left = session.value?.seconds_left ?? 0;
  if (left > 60) return null;
  return html`<div class="note wait" role="alert">You are logged out in ${span(left)}. <button class="link" onClick=${() => look(false)}>Stay logged in</button></div>`;
}

function LogIn() {
  const { run, failure, isBusy } = useRequest(), problem = failure?.message ?? startProblem.value;
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    void run(() => logIn({ key: event.target.elements.key.value.trim() }));
  };
  return html`<main class="login" id="main"><form onSubmit=${submit}><p class="brand"><${Mark} />Sluice</p><h1>Log in</h1>
    <p class="dim">On the machine where Sluice runs: <code>sluice console</code>. Elsewhere, paste your client key; the browser does not keep it.</p>
    <label>Client key<input name="key" type="password" autocomplete="off" required /></label>
    ${problem && html`<p class="note bad" role="alert">${problem}</p>`}
    <button class="main" disabled=${isBusy}>Log in</button></form></main>`;
}

/* ---------------------------------------------------------------- keys */

const helps = [...Object.values(PAGES).map(([title, , key]) => [`g ${key}`, title]), ["j k", "Next, previous row"], ["Enter", "Open the row"],
  ["d", "Deny"], ["a", "Approve (asks once more)"], ["/", "Filter"], ["?", "This list"]];
const KEYS = "sluice.keys";
let isGoing = false;

function Help() {
  const box = useRef(/** @type {any} */ (null)), [isOn, setOn] = useState(localStorage.getItem(KEYS) !== "off");
  useLayoutEffect(() => { // keys work from the first picture on
    const listen = (/** @type {KeyboardEvent} */ event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || target.closest("input, textarea, select, dialog")) return;
      if (event.key === "?") return box.current.showModal();
      if (localStorage.getItem(KEYS) !== "off") press(event);
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, []);
  const turn = () => { localStorage.setItem(KEYS, isOn ? "off" : "on"); setOn(!isOn); };
  return html`<dialog ref=${box} aria-labelledby="keys"><h2 id="keys">Keys</h2><dl class="keys">${helps.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
    <label class="check"><input type="checkbox" checked=${isOn} onChange=${turn} /> Single keys are on</label>
    <form method="dialog" class="actions"><button class="main">Close</button></form></dialog>`;
}

/** @param {KeyboardEvent} event */
function press(event) {
  const page = isGoing && Object.entries(PAGES).find(([, [, , key]]) => key === event.key);
  isGoing = event.key === "g";
  if (page) return go(page[0] === "overview" ? "/console" : `/console/${page[0]}`);
  if (event.key === "j" || event.key === "k") {
    const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("[data-rows] .row")]);
    const at = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const from = at < 0 ? rows.findIndex((row) => row.hasAttribute("aria-current")) : at;
    rows[Math.max(0, Math.min(rows.length - 1, from + (event.key === "j" ? 1 : -1)))]?.focus();
  } else if (event.key === "/") {
    event.preventDefault();
    /** @type {HTMLElement | null} */ (document.querySelector("[data-filter]"))?.focus();
  } else if (event.key === "a" || event.key === "d") {
    /** @type {HTMLElement | null} */ (document.querySelector(`[data-decide] [data-key="${event.key}"]`))?.click();
  }
}

/* ---------------------------------------------------------------- the title */

const title = () => {
  const count = session.value === null ? 0 : yours().length;
  document.title = `${count ? `(${count}) ` : ""}${PAGES[route.value.page]?.[0] ?? "Sluice"} · Sluice`;
};
waiting.data.subscribe(title);
route.subscribe(title);

await start();
render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
